"""From a worker's event to its record: appended to the node's event file, passed on to the agent, told to people."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from elastic.checkpoint.locating import local_dir
from elastic.clock import Clock
from elastic.events import (
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSaved,
    Event,
    EventFile,
    Notice,
    Record,
    Restored,
    RunFinished,
    StepCommitted,
    arrivals,
    encode,
)
from elastic.link import Link
from elastic.world import World

logger = logging.getLogger(__name__)

STEP_LINE_S = 1.0
"""At least so long from one line about a step to the next."""


class Reporter:
    """Callable as `elastic.events.Emit`."""

    def __init__(self, *, world: World, link: Link, save_path: str, clock: Clock, log_steps: int = 10) -> None:
        self._world = world
        self._link = link
        self._clock = clock
        self._log_steps = log_steps
        self._told_lost = False
        self._told_step_s = float("-inf")
        self.tracking: Callable[[Event], None] | None = None
        """Told of each event of rank 0."""
        self.path = Path(world.events_path or Path(local_dir(save_path)) / "events" / f"{world.node}.jsonl")
        self._file = EventFile(self.path)

    def move(self, world: World) -> None:
        """Tell of another generation from here on."""
        self._world = world

    def __call__(self, event: Event) -> None:
        record = Record(
            time_s=self._clock.wall_s(),
            node=self._world.node,
            rank=self._world.rank,
            generation=self._world.generation,
            event=event,
        )
        encoded = encode(record)
        self._append(encoded)
        self._link.send_event(encoded)
        if self._world.rank == 0 and self.tracking is not None:
            self.tracking(event)
        if (self._world.rank == 0 or _came_from_a_peer(event)) and (line := self._line(event)):
            logger.info(line)

    def close(self) -> None:
        """Close the event file."""
        self._file.close()

    def _append(self, encoded: str) -> None:
        # A full disk must not end a training that its checkpoints survive. The account will show the gap.
        try:
            self._file.append_encoded(encoded)
            self._told_lost = False
        except OSError as error:
            if not self._told_lost:
                logger.error("events are being lost: %s", error)
            self._told_lost = True

    def _line(self, event: Event) -> str | None:
        match event:
            case StepCommitted(iteration=n) if (n % self._log_steps == 0 and self._at_a_human_pace()) or n == 1:
                return f"step {n}  loss {event.loss:.4f}  {1 / max(event.seconds, 1e-9):.1f} steps/s  " + self._where()
            case Restored(tier="none"):
                return f"starting from step 0 ({event.reason})  {self._where()}"
            case Restored():
                came = f", {told}" if (told := arrivals(event)) else ""
                return f"restored step {event.iteration} from {event.tier} ({event.reason}){came}  {self._where()}"
            case CheckpointSaved(tier="disk"):
                return f"saved step {event.iteration} in {event.seconds:.2f} s"
            case CheckpointFailed(tier="disk"):
                return f"could NOT save step {event.iteration}: {event.reason}; training goes on"
            case CheckpointRejected():
                return f"passed over step {event.iteration} on disk: {event.reason}"
            case RunFinished():
                return f"run finished at step {event.iteration}, {event.consumed_samples} samples"
            case Notice():
                return event.text
        return None

    def _at_a_human_pace(self) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s < self._told_step_s + STEP_LINE_S:
            return False
        self._told_step_s = now_s
        return True

    def _where(self) -> str:
        return f"world {self._world.size}  generation {self._world.generation}"


def _came_from_a_peer(event: Event) -> bool:
    """Of this rank alone, and nobody else's line tells it."""
    return isinstance(event, Restored) and any(tier == "peer" for tier, _, _ in event.arrived)
