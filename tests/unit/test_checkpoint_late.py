"""A save of which one operation comes late, at each in turn: what others see meanwhile, and what is left afterwards."""

from __future__ import annotations

import contextlib

import pytest
import torch

from elastic.checkpoint.layout import CommitRecord
from elastic.checkpoint.seams import CommitVerdict
from elastic.errors import Fenced
from tests.harness.checkpoints import DEFAULTS, RecordCommitter, make_run, meta, same
from tests.harness.faulty_storage import FaultyStorage
from tests.unit.test_checkpoint_faults import ORDER, TRACKER, saved_once


class Late(FaultyStorage):
    """One operation is held back while `meanwhile` happens, and then done after all."""

    def __init__(self, *, at, meanwhile):
        super().__init__()
        self._late, self._meanwhile = at, meanwhile

    def _change(self, verb, path, act, tear=None):
        super()._change(verb, path, lambda: None)
        if len(self.calls) - 1 == self._late and not self.fired:
            self.fired = True
            self._meanwhile()
        return act()


class Fencing(RecordCommitter):
    """Refuses older generations, as etcd's transaction does."""

    def commit(self, record: CommitRecord):
        if self.kept is not None and record.generation < self.kept.generation:
            return CommitVerdict(granted=False, stale=True, reason=f"generation {self.kept.generation} exists")
        return super().commit(record)


LONG = pytest.mark.exhaustive


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=LONG)])
@pytest.mark.parametrize("others", [pytest.param(False, id="others wait", marks=LONG), pytest.param(True, id="go on")])
@pytest.mark.parametrize("at", range(len(ORDER)), ids=ORDER)
def test_a_save_that_is_late_anywhere(tmp_path, monkeypatch, at, others, mode):
    """Before the commit it counts for nothing; complete, it may be adopted; once others went on it changes nothing."""
    torch.set_num_threads(1)
    monkeypatch.setitem(DEFAULTS, "save_mode", mode)
    bench, before = saved_once(tmp_path / "root", Fencing())
    after, theirs = make_run().step(20), make_run().step(30)
    complete = at >= ORDER.index("sync_dir .tmp-20-1-N")

    seen = []

    def meanwhile():
        reader = make_run(seed=5)
        manager = bench.manager(generation=2 if others else None)
        seen.append((manager.restore(reader.tracked).iteration, reader))
        if others:
            manager.save(theirs.tracked, meta(30, generation=2))

    storage = Late(at=at, meanwhile=meanwhile)
    with contextlib.suppress(Fenced):
        result = bench.going_on(storage=storage).save(after.tracked, meta(20))
        assert result.saved == (not others or at == TRACKER), result.reason
    ((found, reader),) = seen
    assert found == (20 if at == TRACKER or (others and complete) else 10)
    assert same(reader, after if found == 20 else before)
    other = make_run(seed=6)
    assert bench.manager(generation=3).restore(other.tracked).iteration == (30 if others else 20)
    assert same(other, theirs if others else after)
