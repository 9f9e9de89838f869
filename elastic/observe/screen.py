"""Screen: a status as lines of plain text, the same on a terminal, in a pipe and in a file."""

from __future__ import annotations

from elastic.observe.status import Copy, NodeStatus, RecoverySeen, State, Status
from elastic.observe.words import duration, plain

_BAR = 30
_RECOVERIES_SHOWN = 5


def screen(status: Status) -> list[tuple[str, ...]]:
    """Rows of (name, text) cells, for `console.columns`."""
    rows: list[tuple[str, ...]] = [("job", plain(status.job_id or "-")), ("state", _state(status))]
    if status.state is State.UNKNOWN:
        return rows
    rows.append(("world", f"{status.world_size} workers, generation {status.generation}"))
    rows.append(("progress", _progress(status)))
    rows.append(("pace", _pace(status)))
    durable = status.copies.get("disk")
    rows.append(("durable copy", _copy(durable, status) if durable else "none yet"))
    others = sorted((tier, copy) for tier, copy in status.copies.items() if tier != "disk")
    rows += [(f"{plain(tier)} copy", _copy(copy, status)) for tier, copy in others]
    if status.failed_saves:
        rows.append(("failed saves", str(status.failed_saves)))
    rows += [(f"node {plain(node.node)}", _node(node, status)) for node in status.nodes]
    left_out = len(status.recoveries) - _RECOVERIES_SHOWN
    count = f"{len(status.recoveries)}, rescales {status.rescales}"
    rows.append(("recoveries", count + (f"; the last {_RECOVERIES_SHOWN}:" if left_out > 0 else "")))
    rows += [("", _recovery(each, status)) for each in status.recoveries[-_RECOVERIES_SHOWN:]]
    return rows


def _state(status: Status) -> str:
    since = f" for {duration(status.now_s - status.since_s)}" if status.since_s and not status.state.is_end else ""
    reason = f": {plain(status.reason)}" if status.reason else ""
    return f"{status.state.upper()}{since}{reason}"


def _progress(status: Status) -> str:
    at = f"step {status.iteration}, {status.consumed_samples} samples"
    if status.goal_samples is None:
        return at
    share = min(1.0, status.consumed_samples / status.goal_samples) if status.goal_samples else 1.0
    full = int(share * _BAR)
    return f"[{'#' * full}{'.' * (_BAR - full)}] {share:.1%}  {at} of {status.goal_samples}"


def _pace(status: Status) -> str:
    parts = []
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if status.step_s is not None:
        parts.append(f"{status.step_s:.3f} s a step")
    if status.samples_per_s is not None:
        parts.append(f"{status.samples_per_s:.1f} samples/s")
    if status.eta_s is not None:
        parts.append(f"done in {duration(status.eta_s)}")
    return ", ".join(parts) or "no step yet"


def _copy(copy: Copy, status: Status) -> str:
    return f"step {copy.iteration}, {duration(max(0.0, status.now_s - copy.saved_s))} old"


def _node(node: NodeStatus, status: Status) -> str:
    ranks = f"rank {', '.join(map(str, node.ranks))}, " if node.ranks and not node.state.is_end else ""
    reason = f": {plain(node.reason)}" if node.reason else ""
    warning = f"; {plain(node.warning)}" if node.warning else ""
    return f"{ranks}{node.state}{reason}{warning} (heard {duration(max(0.0, status.now_s - node.heard_s))} ago)"


def _recovery(seen: RecoverySeen, status: Status) -> str:
    ago = duration(max(0.0, status.now_s - seen.at_s))
    again = f"{seen.lost_steps} steps again"
    return f"generation {seen.generation}: {seen.cause}, {seen.seconds:.2f} s by {plain(seen.path)}, {again}, {ago} ago"


def node_rows(status: Status) -> list[tuple[str, str, str, str, str]]:
    """Name, state, ranks, when heard of and why, for a table of nodes."""
    rows = []
    for node in status.nodes:
        ranks = ", ".join(map(str, node.ranks)) if not node.state.is_end else ""
        heard = f"{duration(max(0.0, status.now_s - node.heard_s))} ago"
        why = "; ".join(filter(None, (plain(node.reason), plain(node.warning))))
        rows.append((plain(node.node), str(node.state), ranks, heard, why))
    return rows
