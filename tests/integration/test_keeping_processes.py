"""A worker that waits for another generation, which will not come: what it has is saved before it ends."""

import pytest

from elastic.errors import ExitCode
from elastic.events import CheckpointSaved, StepCommitted, read_records
from tests.harness.placed import KEEP, Places

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def test_one_worker_saves_for_all_that_wait(tmp_path):
    places = Places(tmp_path, steps=100_000, numerics="plain", save_steps=1000, strategy="replicate")
    try:
        places.form("a", "b", "c")
        a, b = places.workers["a"], places.workers["b"]
        a.hear("step", least=12)
        places.lose("c")
        a.hear("stays")
        b.hear("stays")
        b.place(KEEP)  # type: ignore[arg-type]  # not rank 0: it may be any
        assert b.end() == ExitCode.REGROUP
        reached = max(word["step"] for word in b.said if "step" in word)
        records = read_records(tmp_path / "checkpoint" / "events")
        saved = [r.event for r in records if isinstance(r.event, CheckpointSaved) and r.event.tier == "disk"]
        assert [each.iteration for each in saved] == [reached]
        done = [r.event.iteration for r in records if isinstance(r.event, StepCommitted) and r.node == "b"]
        assert max(done) == reached
        # Whoever comes next goes on from there.
        places.workers.pop("b").close()
        places.lose("a")
        places.form("d")
        assert places.workers["d"].hear("step")["step"] == reached + 1
    finally:
        places.close()
