"""Page: the report of a run as one HTML file that needs nothing else: no script, no font, no request."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from elastic.events import rate, size
from elastic.observe.chronicle import Chronicled
from elastic.observe.drawing import COLOURS, Line, bars, loss_chart, world_chart
from elastic.observe.incidents import Incident
from elastic.observe.text import number, safe, table
from elastic.observe.words import duration

_NO_REQUESTS = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True, kw_only=True)
class Account:
    """The sample account as (name, value) pairs, and the verdict in a sentence."""

    verdict: str
    exact: bool | None
    """None: there is no account."""
    numbers: tuple[tuple[str, object], ...] = ()
    problems: tuple[str, ...] = ()


def page(told: Chronicled, *, account: Account, settings: Mapping[str, Mapping[str, object]], made_s: float) -> str:
    """The whole page. `made_s`: when, Unix time."""
    style = importlib.resources.files("elastic.observe").joinpath("report.css").read_text()
    sections = (
        ("summary", "Summary", _summary(told, account)),
        ("loss", "Loss", _loss(told)),
        ("world", "World size", _world(told)),
        ("time", "Where the time went", _time(told)),
        ("recoveries", "Recoveries", _incidents(told)),
        ("samples", "Sample account", _account(account)),
        ("checkpoints", "Checkpoints", _checkpoints(told)),
        ("notices", "Notices and evaluations", _notices(told)),
        ("configuration", "Configuration", _configuration(settings)),
        ("versions", "Versions", table(("node", "versions"), list(told.versions), label="versions")),
    )
    links = "".join(f'<a href="#{name}">{safe(title)}</a>' for name, title, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{safe(title)}</h2>{text}</section>' for name, title, text in sections)
    job = safe(told.status.job_id or "a run")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_NO_REQUESTS}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Run {job}</title><style>{style}</style></head><body>"
        f'<a class="skip" href="#summary">To the summary</a><header><h1>Run {job}</h1>'
        f"<p>{_moment(told.begin_s)} to {_moment(told.end_s)}; made {_moment(made_s)}</p>"
        f'<nav aria-label="Parts of this page">{links}</nav></header><main>{body}</main></body></html>\n'
    )


def _summary(told: Chronicled, account: Account) -> str:
    status = told.status
    goodput = "-" if told.goodput is None else f"{told.goodput:.1%}"
    loss = "-" if status.loss is None else f"{status.loss:.4f}"
    recovered = [each for each in told.status.recoveries if each.seconds]
    slowest = max((each.seconds for each in recovered), default=0.0)
    facts = [
        ("state", f"{status.state}" + (f": {status.reason}" if status.reason else "")),
        ("progress", f"step {status.iteration}, {status.consumed_samples} samples" + _of_goal(status.goal_samples)),
        ("last loss", loss),
        ("wall time", duration(told.end_s - told.begin_s)),
        ("goodput", f"{goodput} of it in steps that count"),
        ("recoveries", f"{len(recovered)}" + (f", the slowest {slowest:.2f} s" if recovered else "")),
        ("rescales", status.rescales),
        ("sample account", account.verdict),
        *((name.replace("_", " "), count) for name, count in told.counts.items() if name in _WORTH_TELLING),
    ]
    return "<dl>" + "".join(f"<dt>{safe(name)}</dt><dd>{safe(value)}</dd>" for name, value in facts) + "</dl>"


_WORTH_TELLING = (
    "failed saves",
    "checkpoint_rejected",
    "fenced",
    "storage_retried",
    "replicas_differed",
    "worker_hung",
)


def _of_goal(goal_samples: int | None) -> str:
    return "" if goal_samples is None else f" of {goal_samples}"


def _loss(told: Chronicled) -> str:
    lines = [Line(x=mark.consumed_samples, kind=mark.kind, text=mark.text) for mark in told.marks]
    legend = (
        '<p class="legend"><span class="key recovery"></span>recovery <span class="key rescale"></span>rescale '
        '<span class="key checkpoint"></span>checkpoint. The line is the mean, the band what it ranges over. '
        "Steps that were done again are shown as they counted in the end.</p>"
    )
    return loss_chart(told.loss, lines=lines) + legend


def _world(told: Chronicled) -> str:
    lines = [
        Line(x=mark.consumed_samples, kind=mark.kind, text=mark.text) for mark in told.marks if mark.kind == "rescale"
    ]
    return world_chart(told.worlds, end=told.status.consumed_samples, lines=lines)


def _time(told: Chronicled) -> str:
    whole_s = sum(told.spent_s.values())
    parts, reached_s = [], 0.0
    for name, seconds in told.spent_s.items():
        parts.append((name, reached_s, reached_s + seconds))
        reached_s += seconds
    rows: list[tuple[object, ...]] = [
        (name, f"{seconds:.1f} s", f"{seconds / whole_s:.1%}") for name, seconds in told.spent_s.items()
    ]
    rows.append(("all", f"{whole_s:.1f} s", "100.0%"))
    label = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in told.spent_s.items())
    return bars(parts, total=whole_s, label=label) + _keyed(rows)


def _keyed(rows: Sequence[tuple[object, ...]]) -> str:
    """A table whose rows, but for the last, carry the colours of the bars above it."""
    shown = ""
    for at, (name, spent, share) in enumerate(rows):
        key = _key(at) if at < len(rows) - 1 else ""
        shown += f"<tr><td>{key}{safe(name)}</td><td>{safe(spent)}</td><td>{safe(share)}</td></tr>"
    return f"<table><tbody>{shown}</tbody></table>"


def _key(at: int) -> str:
    return f'<span class="key part{at % COLOURS}"></span>'


def _incidents(told: Chronicled) -> str:
    if not told.incidents:
        return "<p>None.</p>"
    left_out = told.counts["incidents"] - len(told.incidents)
    note = f"<p>{left_out} earlier ones are left out.</p>" if left_out else ""
    return note + "".join(_incident(each) for each in told.incidents)


def _incident(each: Incident) -> str:
    way = f" by {each.path}" if each.path else ""
    again = f", {each.lost_steps} steps again" if each.lost_steps else ""
    title = f"{_moment(each.begin_s)}: {each.cause}, {each.seconds:.2f} s{way}{again}, then {each.world_size} workers"
    stages = [(stage.name, stage.start_s, stage.stop_s) for stage in each.stages]
    told = ", ".join(f"{name} {stop - start:.2f} s" for name, start, stop in stages)
    keys = "".join(
        f"<li>{_key(at)}{safe(name)} {stop - start:.2f} s</li>" for at, (name, start, stop) in enumerate(stages)
    )
    return (
        f"<details open><summary>{safe(title)}</summary><p>{safe(each.reason)}</p>"
        f"{bars(stages, total=each.seconds, label=told)}<ol>{keys}</ol>{_arrived(each)}</details>"
    )


def _arrived(each: Incident) -> str:
    """How much of the state came from where, and how fast to one worker."""
    told = [
        f"{size(of_bytes)} from {'peers' if tier == 'peer' else tier}"
        + (f" ({fast} a worker)" if (fast := rate(of_bytes, seconds)) else "")
        for tier, of_bytes, seconds in each.arrived
    ]
    return f"<p>{safe('State: ' + ', '.join(told))}</p>" if told else ""


def _account(account: Account) -> str:
    mark = {True: "good", False: "bad", None: ""}[account.exact]
    problems = "".join(f"<li>{safe(problem)}</li>" for problem in account.problems)
    numbers = table(("what", "count"), list(account.numbers), label="sample account") if account.numbers else ""
    return f'<p class="{mark}">{safe(account.verdict)}</p><ul>{problems}</ul>{numbers}'


def _checkpoints(told: Chronicled) -> str:
    if not told.saves:
        return "<p>Nothing was saved.</p>"
    total = told.counts.get("saves: disk", 0) + told.counts.get("failed saves", 0)
    memory = told.counts.get("saves: memory", 0)
    rows: list[tuple[object, ...]] = [
        (
            each.iteration,
            _moment(each.at_s),
            f"{each.bytes / 1e6:.1f} MB",
            f"{each.seconds:.2f} s",
            f"{each.stall_s:.3f} s",
            each.problem or "durable",
        )
        for each in reversed(told.saves)
    ]
    head = ("step", "when", "size", "took", "training waited", "outcome")
    shown = f"the last {len(told.saves)} shown" if total > len(told.saves) else "newest first"
    return f"<p>{number(total)} saves, {shown}; {number(memory)} copies in memory.</p>" + table(
        head, rows, label="checkpoints"
    )


def _notices(told: Chronicled) -> str:
    notices = "".join(f"<li>{safe(text)}</li>" for text in told.notices) or "<li>No notices.</li>"
    measured = table(("step", "values"), list(told.evaluations), label="evaluations") if told.evaluations else ""
    return f"<ul>{notices}</ul>{measured}"


def _configuration(settings: Mapping[str, Mapping[str, object]]) -> str:
    if not settings:
        return "<p>No checkpoint holds the settings of this run.</p>"
    rows: list[tuple[object, ...]] = []
    for section, values in settings.items():
        plain = values.items() if isinstance(values, Mapping) else [("", values)]
        rows += [(f"{section}.{name}" if name else section, json.dumps(value, default=str)) for name, value in plain]
    shown = table(("setting", "value"), rows, label="settings")
    return f"<details><summary>{len(rows)} settings</summary>{shown}</details>"


def _moment(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"
