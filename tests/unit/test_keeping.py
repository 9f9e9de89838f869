"""What a node that is to go does about workers that wait for another generation."""

import json
from types import SimpleNamespace

from elastic.clock import ManualClock
from elastic.events import Cause
from elastic.launch.keeping import Duty, judge, keep
from elastic.link import Control, Stays
from elastic.rendezvous.model import Phase, World


def world(generation, phase):
    return World(
        generation=generation, phase=phase, seats=(), store_address="", store_port=0, cause=Cause.NODE_LOST, reason=""
    )


def duty(*, step=7, committed=5, leads=True, world=None):
    record = json.dumps({"iteration": committed}) if committed else None
    return judge(step=step, generation=3, world=world, record=record, leads=leads).duty


def test_the_leader_saves_what_is_durable_nowhere():
    assert duty() is Duty.SAVE
    assert duty(committed=None) is Duty.SAVE
    assert duty(world=world(3, Phase.OPEN)) is Duty.SAVE
    assert duty(leads=False) is Duty.WAIT


def test_there_is_nothing_to_do_where_it_is_durable_or_others_go_on():
    assert duty(committed=7) is Duty.NOTHING
    assert duty(committed=9, leads=False) is Duty.NOTHING
    assert duty(world=world(4, Phase.FORMED)) is Duty.NOTHING


class Workers:
    """Two that wait, by local rank. The one that is asked to keep what it has ends."""

    def __init__(self):
        self.left = {rank: SimpleNamespace(pid=10 + rank) for rank in (0, 1)}
        self.looks = 0

    @property
    def pids(self):
        return [each.pid for each in self.left.values()]

    def wait(self, *, limit_s):
        self.looks += 1

    def let_end(self, *, limit_s, hurry, staying):
        self.left = {rank: each for rank, each in self.left.items() if each.pid in staying()}


def stage(workers, *, leads_after=0, durable_after=None, hurried=False):
    """An agent's; it leads, or another has saved all, after so many looks."""

    def record():
        saved = durable_after is not None and workers.looks >= durable_after
        return json.dumps({"iteration": 9 if saved else 5})

    coordinator = Coordinator(workers, leads_after, record)
    asked = []
    return SimpleNamespace(
        coordinator=coordinator,
        staying={10 + rank: Stays(generation=3, lost=True, step=8 + rank, text="") for rank in (0, 1)},
        server=SimpleNamespace(ask=lambda pid, control: asked.append((pid, control))),
        signals=SimpleNamespace(hurried=hurried),
        clock=ManualClock(),
        asked=asked,
    )


class Coordinator:
    generation = 3

    def __init__(self, workers, leads_after, record):
        self._workers, self._leads_after, self.commit_record = workers, leads_after, record

    def world(self):
        return world(3, Phase.OPEN)

    @property
    def is_leader(self):
        return self._workers.looks >= self._leads_after


def test_one_worker_of_the_node_that_comes_to_lead_saves():
    workers = Workers()
    made = stage(workers, leads_after=3)
    keep(made, workers, until_s=30.0)
    assert made.asked == [(10, Control.KEEP)]
    assert (workers.looks, workers.pids) == (3, [11]), "its end was waited for, the other one's was not"


def test_nobody_saves_what_another_has_saved_meanwhile():
    workers = Workers()
    made = stage(workers, leads_after=100, durable_after=2)
    keep(made, workers, until_s=30.0)
    assert (made.asked, workers.looks, workers.pids) == ([], 2, [10, 11])


def test_workers_that_wait_for_their_first_place_have_nothing_to_keep():
    workers = Workers()
    made = stage(workers)
    made.staying = {10: Stays(generation=0, lost=False, step=0, text="the job is built")}
    made.coordinator = None  # not even the store is asked, which may be away
    keep(made, workers, until_s=30.0)
    assert (made.asked, workers.looks) == ([], 0)


def test_a_second_signal_ends_the_waiting():
    workers = Workers()
    made = stage(workers, leads_after=100, hurried=True)
    keep(made, workers, until_s=30.0)
    assert (made.asked, workers.looks) == ([], 0)
