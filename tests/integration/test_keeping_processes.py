"""A worker that waits for another generation, which will not come: what it has is saved before it ends."""

import pytest

from elastic.errors import ExitCode
from elastic.events import CheckpointSaved, Notice, StepCommitted, read_records
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


@pytest.mark.parametrize("nodes", [("a", "b"), ("a", "b", "c")])
def test_dealt_out_parts_are_saved_by_a_node_that_has_all_of_them(tmp_path, nodes):
    """Each node's memory holds its own part and a copy of another's: of two nodes' parts all, of three nodes' not."""
    places = Places(tmp_path, steps=100_000, numerics="plain", save_steps=1000, strategy="fsdp2")
    whole = len(nodes) == 2
    try:
        places.form(*nodes)
        b = places.workers["b"]
        b.hear("step", least=12)
        places.lose("a")
        b.hear("stays")
        b.place(KEEP)  # type: ignore[arg-type]  # not rank 0: it may be any
        assert b.end() == ExitCode.REGROUP
        reached = max(word["step"] for word in b.said if "step" in word)
        records = read_records(tmp_path / "checkpoint" / "events")
        saved = [r.event for r in records if isinstance(r.event, CheckpointSaved) and r.event.tier == "disk"]
        told = [r.event.text for r in records if isinstance(r.event, Notice) and "is lost" in r.event.text]
        kept = [each.iteration for each in saved]
        # A step that was done but not yet copied by all is the one in flight.
        assert kept in ([reached - 1], [reached]) if whole else not kept, kept
        assert bool(told) != whole, told
        # Whoever comes next goes on from there, or from nothing, as nothing was ever saved.
        for node in nodes[1:]:
            places.workers.pop(node).close()
        places.form("d", "e")
        assert places.workers["d"].hear("step")["step"] == (kept[0] + 1 if whole else 1)
    finally:
        places.close()
