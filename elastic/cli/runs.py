"""What commands that look at a run share: where its records lie, where it is to end."""

from __future__ import annotations

from pathlib import Path

from elastic.cli.console import complain
from elastic.errors import UsageError


def events_of(save_path: str) -> Path:
    """The run's directory of events, on this machine also where the run saves into an object store.

    Raises:
        UsageError: there is none, or it is empty.
    """
    from elastic.checkpoint.locating import local_dir

    directory = Path(local_dir(save_path)) / "events"
    if not any(directory.glob("*.jsonl")):
        raise UsageError(f"{directory} holds no events; name the checkpoint.save_path of a run")
    return directory


class Unreadable:
    """Counts what of the event files is no record or cannot be read, so that it does not hide all the rest."""

    def __init__(self) -> None:
        self._count = 0
        self._first = ""

    def __call__(self, problem: str) -> None:
        self._count += 1
        self._first = self._first or problem

    def tell(self) -> None:
        """On stderr, if there were any."""
        if self._count:
            what = "line or file of the events" if self._count == 1 else "lines or files of the events"
            complain(f"{self._count} {what} cannot be read, passed over; the first: {self._first}")


def goal_samples(save_path: str) -> int | None:
    """Where the run ends by the settings in its newest checkpoint; None before the first one."""
    training = newest_settings(save_path).get("training", {})
    if not isinstance(training, dict):
        return None
    steps, batch = training.get("steps"), training.get("global_batch_size")
    return steps * batch if isinstance(steps, int) and isinstance(batch, int) else None


def newest_settings(save_path: str) -> dict[str, dict[str, object]]:
    """The settings in the run's newest whole checkpoint; empty where there is none."""
    import os

    from elastic.checkpoint.layout import MANIFEST, MAX_JSON_BYTES
    from elastic.checkpoint.locating import storage_for
    from elastic.checkpoint.manifest import Manifest
    from elastic.checkpoint.survey import read_small, survey

    storage = storage_for(save_path)
    found = survey(save_path, storage=storage).in_place
    whole = [each for each in found if each.problem is None and each.lineage is not None]
    if not whole:
        return {}
    place = os.path.join(save_path, max(whole, key=lambda each: each.iteration).place, MANIFEST)
    try:
        return dict(Manifest.from_bytes(read_small(place, storage=storage, limit_bytes=MAX_JSON_BYTES)).settings)
    except ValueError:
        return {}  # It was taken away since it was looked at: the run goes on meanwhile.
