"""Tracking: hands the points of a run to its tracker, in a thread, so that no tool can hold up or end the training."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import queue
import threading
from collections.abc import Callable

from elastic.errors import ElasticError, UsageError
from elastic.events import Event
from elastic.tracking.curves import Begin, Curves, Point
from elastic.tracking.tracker import Open, TrackedRun, Tracker

BUILT_IN = {
    "tensorboard": "elastic.tracking.tensorboard_run:open_run",
    "wandb": "elastic.tracking.wandb_run:open_run",
    "mlflow": "elastic.tracking.mlflow_run:open_run",
}
_CLOSE_S = 20.0
"""How long the end of a run waits for a tool to take the last points."""
_MOST_WAITING = 10_000


class Tracking:
    """Callable with each event of this worker; rank 0 alone should. Opened with the first `Restored`."""

    def __init__(self, open_tracker: Callable[[], Tracker], *, every_steps: int, tell: Callable[[str], None]) -> None:
        """`tell` hears once why there are no points any more, from the thread."""
        self._open, self._tell = open_tracker, tell
        self._curves = Curves(every_steps=every_steps)
        self._queue: queue.Queue[Begin | Point | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._over = False

    def __call__(self, event: Event) -> None:
        found = self._curves.take(event)
        if found is None or self._over:
            return
        if self._thread is None:
            if not isinstance(found, Begin):
                return
            self._thread = threading.Thread(target=self._run, name="elastic-tracking", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(found)
        except queue.Full:
            self._give_up(f"the tracker takes no points: {_MOST_WAITING} wait for it")

    def close(self) -> None:
        """Let it take what waits, for a while."""
        self._over = True
        if self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(queue.Full):  # a tool that hangs, with all the room taken
                self._queue.put(None, timeout=_CLOSE_S)
                self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        tracker: Tracker | None = None
        try:
            tracker = self._open()
            told = 0
            while (found := self._queue.get()) is not None:
                if isinstance(found, Begin):
                    told = tracker.begin(found.samples)
                elif found.samples > told:
                    tracker.log(found.values, samples=found.samples)
            tracker.close()
        except Exception as error:  # noqa: BLE001 - whatever a tool of others does: the training is worth more
            why = str(error) if isinstance(error, ElasticError) else f"{type(error).__name__}: {error}"
            self._give_up(f"tracking has ended, training goes on: {why}")

    def _give_up(self, why: str) -> None:
        self._over = True
        self._tell(why)


def check_there(target: str) -> None:
    """See that what is asked for is installed, without importing it: rank 0 may come to be on any node.

    Raises:
        UsageError: it is not.
    """
    library = target if target in BUILT_IN else target.partition(":")[0].partition(".")[0]
    if importlib.util.find_spec(library) is None:
        hint = f"pip install 'elastic-training[{target}]'" if target in BUILT_IN else "is it on PYTHONPATH?"
        raise UsageError(f"tracking.to is {target!r}, but there is no {library} here; {hint}")


def open_tracker(target: str, run: TrackedRun) -> Tracker:
    """The run's tracker: a built-in one by its name, or what any function by module:name opens.

    Raises:
        UsageError: there is no such function. Whatever the tool raises.
    """
    module, _, name = BUILT_IN.get(target, target).partition(":")
    opener: Open | None = getattr(importlib.import_module(module), name, None)
    if opener is None:
        raise UsageError(f"tracking.to is {target!r}, but {module} has no {name!r}")
    return opener(run)
