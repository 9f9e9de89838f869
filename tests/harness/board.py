"""Board: the panels of the Grafana dashboard, asked of a Prometheus over the last minutes and drawn as one page.

Grafana itself is not here: the numbers are what its panels would show, the drawing is plain."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.prometheus import Prometheus

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboard.json"
_COLOURS = ("#0b62c4", "#d97706", "#146c2e", "#7a4fbf", "#b3261e", "#0e7490", "#a16207", "#596069")
_STYLE = """body{margin:0;padding:12px;background:#111418;color:#e6e8ea;font:13px system-ui,sans-serif}
main{display:grid;grid-template-columns:repeat(12,1fr);gap:8px}
section{background:#1b1f24;border:1px solid #2c323a;padding:6px 8px;grid-column:span 4;min-width:0}
section.stat{grid-column:span 2}h2{font-size:12px;margin:0 0 4px;font-weight:600}
h1{grid-column:1/-1;font-size:14px;margin:6px 0 0}b{font-size:24px}svg{width:100%;height:90px;display:block}
p{margin:2px 0 0;color:#a3abb4;font-size:11px;overflow:hidden;white-space:nowrap;text-overflow:ellipsis}
i{display:inline-block;width:9px;height:9px;margin-right:4px}"""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a panel: (Unix time, value) points."""

    name: str
    points: tuple[tuple[float, float], ...]


def draw_board(prometheus: Prometheus, *, begin_s: float, end_s: float) -> str:
    """The dashboard as a page, panel for panel; those of tables are left out."""
    parts = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        title = html.escape(panel["title"])
        if panel["type"] == "row":
            parts.append(f"<h1>{title}</h1>")
        elif panel["type"] in ("stat", "timeseries", "heatmap"):
            series = [one for target in panel["targets"] for one in _ask(prometheus, target["expr"], begin_s, end_s)]
            body = _stat(series) if panel["type"] == "stat" else _plot(series, begin_s=begin_s, end_s=end_s)
            parts.append(f'<section class="{panel["type"]}"><h2>{title}</h2>{body}</section>')
    return f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style><main>{''.join(parts)}</main>"


def _ask(prometheus: Prometheus, expression: str, begin_s: float, end_s: float) -> Iterator[Series]:
    asked = expression.replace("$__rate_interval", "10s").replace("$job", "elastic").replace(":15s]", ":1s]")
    for each in prometheus.span(asked, begin_s=begin_s, end_s=end_s):
        labels = sorted((name, value) for name, value in each["metric"].items() if name not in ("job", "__name__"))
        points = tuple((float(at), float(value)) for at, value in each["values"] if value != "NaN")
        if points:
            yield Series(name=", ".join(f"{name} {value}" for name, value in labels), points=points)


def _stat(series: Sequence[Series]) -> str:
    return f"<b>{series[0].points[-1][1]:.4g}</b>" if series else "<b>-</b>"


def _plot(series: Sequence[Series], *, begin_s: float, end_s: float) -> str:
    values = [value for one in series for _, value in one.points if math.isfinite(value)]
    if not values:
        return "<p>nothing of this kind happened</p>"
    low, high = min(0.0, *values), max(values)
    lines = []
    for number, one in enumerate(series):
        points = " ".join(
            f"{(at - begin_s) / (end_s - begin_s) * 400:.1f},{88 - (value - low) / ((high - low) or 1) * 84:.1f}"
            for at, value in one.points
            if math.isfinite(value)
        )
        colour = _COLOURS[number % len(_COLOURS)]
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    keys = " ".join(
        f'<i style="background:{_COLOURS[number % len(_COLOURS)]}"></i>{html.escape(one.name or "all")}'
        for number, one in enumerate(series)
    )
    plot = f'<svg viewBox="0 0 400 90" preserveAspectRatio="none">{"".join(lines)}</svg>'
    return f"{plot}<p>{keys}</p><p>{low:.4g} to {high:.4g}</p>"
