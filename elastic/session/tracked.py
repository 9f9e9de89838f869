"""Tracked: the tracker that a run's settings ask for, as one more listener to its events."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from elastic.checkpoint.locating import is_url, local_dir
from elastic.config.load import to_plain
from elastic.config.model import Settings
from elastic.errors import UsageError
from elastic.events import Emit, Event, Notice
from elastic.tracking.tracker import TrackedRun, Tracker
from elastic.tracking.tracking import Tracking, check_there, open_tracker

logger = logging.getLogger(__name__)


def track(settings: Settings, *, job_id: str, emit: Emit, stack: ExitStack) -> Callable[[Event], None] | None:
    """What is to hear of rank 0's events; None where nothing was asked for. Nothing is imported before the first one.

    Raises:
        UsageError: the library asked for is not installed.
    """
    wanted = settings.tracking
    if wanted.to == "none":
        return None
    check_there(wanted.to)
    run = tracked_run(settings, job_id=job_id)
    tracking = Tracking(
        lambda: _opened(wanted.to, run),
        every_steps=wanted.every_steps,
        tell=lambda why: emit(Notice(text=why)),
    )
    stack.callback(tracking.close)
    return tracking


def _opened(target: str, run: TrackedRun) -> Tracker:
    """In the tracking's own thread: what goes wrong here ends the tracking, and not the worker."""
    try:
        Path(run.directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"tracking.directory {run.directory!r} cannot be made ({error.strerror}); name another one"
        ) from error
    return open_tracker(target, run)


def tracked_run(settings: Settings, *, job_id: str) -> TrackedRun:
    """The run by a name that every start of it has: the job's id alone may be given to several runs."""
    save_path = settings.checkpoint.save_path
    place = save_path if is_url(save_path) else os.path.abspath(save_path)
    directory = settings.tracking.directory or str(Path(local_dir(save_path)) / "tracking")
    flat = {
        f"{section}.{name}": value
        for section, fields in to_plain(settings).items()
        for name, value in fields.items()
        if isinstance(value, str | int | float | bool)
    }
    return TrackedRun(
        name=f"{job_id}-{zlib.crc32(place.encode()):08x}",
        project=settings.tracking.project,
        directory=directory,
        settings=flat,
    )
