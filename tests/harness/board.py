"""Board: the panels of the Grafana dashboard, asked of a Prometheus over the last minutes and drawn as one page.

Grafana itself is not here: the numbers are what its panels would show, the drawing is plain."""

from __future__ import annotations

import html
import json
import math
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from elastic.local.etcd import free_port

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboard.json"
_STEP_S = 1
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


class Prometheus:
    """A server on loopback that scrapes the targets of a file each second. A context manager."""

    def __init__(self, directory: Path, *, targets: Path) -> None:
        binary = shutil.which("prometheus")
        assert binary is not None, "prometheus is not installed: apt-get install prometheus"
        directory.mkdir()
        discovered = {"files": [str(targets)], "refresh_interval": "1s"}
        scrape = [{"job_name": "elastic", "file_sd_configs": [discovered]}]
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": scrape}
        (directory / "prometheus.yml").write_text(json.dumps(config))
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = (directory / "log").open("w")
        command = [binary, f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
        command.append(f"--web.listen-address={self.url.removeprefix('http://')}")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        self._log.close()

    def ask(self, expression: str, *, begin_s: float, end_s: float) -> list[Series]:
        """A query over a span of time. Raises OSError where there is no answer."""
        query = urllib.parse.urlencode({"query": expression, "start": begin_s, "end": end_s, "step": _STEP_S})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query_range?{query}", timeout=30) as answer:
                found = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        return [
            Series(
                name=", ".join(f"{k} {v}" for k, v in sorted(each["metric"].items()) if k not in ("job", "__name__")),
                points=tuple((float(at), float(value)) for at, value in each["values"] if value != "NaN"),
            )
            for each in found
        ]


def draw_board(prometheus: Prometheus, *, begin_s: float, end_s: float) -> str:
    """The dashboard as a page, panel for panel; those of tables are left out."""
    parts = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        title = html.escape(panel["title"])
        if panel["type"] == "row":
            parts.append(f"<h1>{title}</h1>")
        elif panel["type"] in ("stat", "timeseries"):
            series = [one for target in panel["targets"] for one in _ask(prometheus, target["expr"], begin_s, end_s)]
            body = _stat(series) if panel["type"] == "stat" else _plot(series, begin_s=begin_s, end_s=end_s)
            parts.append(f'<section class="{panel["type"]}"><h2>{title}</h2>{body}</section>')
    return f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style><main>{''.join(parts)}</main>"


def _ask(prometheus: Prometheus, expression: str, begin_s: float, end_s: float) -> Iterator[Series]:
    asked = expression.replace("$__rate_interval", "10s").replace("$job", "elastic").replace(":15s]", ":1s]")
    yield from (one for one in prometheus.ask(asked, begin_s=begin_s, end_s=end_s) if one.points)


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
