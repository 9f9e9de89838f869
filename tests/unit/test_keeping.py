"""What a node that is to go does about workers that wait for another generation."""

import json

from elastic.events import Cause
from elastic.launch.keeping import Duty, judge
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
