"""Words: every event as one sentence for people. Text that came from workers is stripped of control characters."""

from __future__ import annotations

import dataclasses
import unicodedata

from elastic import events
from elastic.events import Event, Record


def sentence(event: Event) -> str:
    """What happened, on one line. Kinds without a sentence of their own tell their fields."""
    return plain(_sentence(event))


def plain(text: str) -> str:
    """The text without control characters, which could move a terminal's cursor or colour what follows."""
    return "".join(sign if unicodedata.category(sign)[0] != "C" else " " for sign in text)


def head(record: Record) -> str:
    """Who saw it, in which generation."""
    rank = "" if record.rank is None else f" rank {record.rank}"
    return plain(f"{record.node}{rank} g{record.generation}")


def is_routine(event: Event) -> bool:
    """Whether it happens at every step or copy, so that a list of events is easier to read without it."""
    return isinstance(event, events.StepCommitted) or (
        isinstance(event, events.CheckpointSaved) and event.tier == "memory"
    )


def duration(seconds: float) -> str:
    """Seconds as people say them: `0.8 s`, `12 min 3 s`, `3 h 5 min`."""
    if not seconds < 1e9:
        return "more than 30 years"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _sentence(event: Event) -> str:
    return _of_agents(event) or _of_workers(event) or _of_checkpoints(event) or _fields(event)


def _of_agents(event: Event) -> str:
    match event:
        case events.AgentStarted():
            return f"agent up (elastic {event.version}, torch {event.torch_version}), metrics at {event.exporter}"
        case events.RoundOpened():
            return f"the generation ends ({event.cause}): {event.reason}"
        case events.WorldFormed():
            return f"world of {event.world_size} on {event.node_count} nodes ({event.cause}): {event.reason}"
        case events.NodesAwaited():
            return f"waiting for nodes, {event.here} of at least {event.needed} are here: {event.reason}"
        case events.Rescaled():
            return f"rescaled {event.direction}: {event.old_world_size} -> {event.new_world_size} ({event.cause})"
        case events.NodeLost():
            return f"lost {event.lost}: {event.reason}"
        case events.Recovered():
            again = f"{event.lost_steps} steps to do again"
            return f"recovered from {event.cause} in {event.seconds:.2f} s by {event.path}, {again}"
        case events.JobEnded():
            return f"job {event.outcome} (exit code {event.exit_code}): {event.reason}"
        case events.WorkerHung():
            return f"worker pid {event.pid} hangs: {event.reason}; stacks of all in {event.stacks}"
        case events.Straggles():
            what = "is slower than the others" if event.slow else "keeps up with the others again"
            return f"this worker {what}: {event.own_s:.3f} s a micro-batch, theirs {event.others_s:.3f} s"
        case events.LeaveAsked():
            return f"asked to leave ({event.source}): {event.reason}"
        case events.WishHeard(what="scale"):
            return f"asked to have {event.min_nodes} to {event.max_nodes} nodes: {event.reason}"
        case events.WishHeard():
            return f"asked to {event.what}: {event.reason}"
        case events.Fencing():
            return f"refused, of an ended generation ({event.what}): {event.reason}"
    return ""


def _of_workers(event: Event) -> str:
    match event:
        case events.WorkerStarted():
            return f"worker {event.worker_rank} started (pid {event.pid}, {event.path})"
        case events.WorkerStayed():
            return f"worker {event.worker_rank} stays (pid {event.pid})"
        case events.WorkerLost():
            return f"worker {event.worker_rank} lost ({event.cause}): {event.reason}"
        case events.GroupReady():
            return f"process group ready ({event.backend}, {event.seconds:.2f} s)"
        case events.StepCommitted():
            loss = f"skipped: {event.skipped}" if event.skipped else f"loss {event.loss:.4f}"
            return f"step {event.iteration}, {event.stop} samples, {loss}, {event.seconds:.3f} s"
        case events.Evaluated():
            return f"evaluated at step {event.iteration}: " + ", ".join(f"{k} {v:.4f}" for k, v in event.values)
        case events.OrderChosen():
            return f"order of the data: {event.order} over {event.length or 'an unknown number of'} items"
        case events.Notice():
            return event.text
        case events.RunFinished():
            return f"the run is finished: step {event.iteration}, {event.consumed_samples} samples"
    return ""


def _of_checkpoints(event: Event) -> str:
    match event:
        case events.Restored():
            came = f"; {told}" if (told := events.arrivals(event)) else ""
            return f"goes on from step {event.iteration} ({event.tier}, {event.seconds:.2f} s): {event.reason}{came}"
        case events.CheckpointSaved():
            return f"saved step {event.iteration} ({event.tier}, {event.bytes / 1e6:.1f} MB, {event.seconds:.2f} s)"
        case events.CheckpointFailed():
            return f"could not save step {event.iteration}: {event.reason}"
        case events.CheckpointRejected():
            return f"passed over iteration {event.iteration}: {event.reason}"
    return ""


def _fields(event: Event) -> str:
    told = ", ".join(f"{name} {value}" for name, value in dataclasses.asdict(event).items() if value != "")
    return f"{event.kind.replace('_', ' ')}: {told}"
