"""Out of a dead collective: survivors of a killed or frozen rank are free at once, and form the next group in place."""

import json
import os
import statistics
import subprocess
import sys

import pytest

from elastic.clock import SYSTEM_CLOCK
from tests.harness.regroup import ranks

pytestmark = pytest.mark.integration

FREE_S = 5.0
"""A survivor may take so long on a busy machine; alone it takes milliseconds. Without a cut it takes for ever."""
HALF_S = 0.01
"""Into a copy that takes ten times as long."""
TRIES = 10
"""A fault may come between two copies."""
QUIET_S = 0.1
"""No step for so long: the others stand still."""
WORKS = ["sum", "replica", "tree", "sharded"]


def survive(made, victim, *, frozen):
    """One rank goes in the middle of a step; the seconds until the others are free, by rank."""
    for _ in range(2):
        victim.hear("step")
    (victim.freeze if frozen else victim.kill)()
    since_s = SYSTEM_CLOCK.monotonic_s()
    survivors = [rank for rank in made.ranks if rank is not victim]
    if frozen:
        for rank in survivors:
            while rank.heard("step", limit_s=QUIET_S):
                pass  # an agent says so to workers that stand still, not before
        since_s = SYSTEM_CLOCK.monotonic_s()
        for rank in survivors:
            rank.tell("cut")
    seconds = []
    for rank in survivors:
        assert rank.hear("lost", limit_s=FREE_S)
        seconds.append(SYSTEM_CLOCK.monotonic_s() - since_s)
        rank.hear("left", limit_s=FREE_S)
    if frozen:
        assert victim.state == "T"
        victim.kill()
    return seconds


def cycle(made, *, times, frozen):
    """Lose one of three, go on with two, and with a new one as three; the victim's rank changes."""
    seconds = []
    made.form(made.ranks)
    for turn in range(times):
        victim = made.ranks[turn % 3]
        seconds += survive(made, victim, frozen=frozen)
        newcomers = made.replace(victim)
        made.form([rank for rank in made.ranks if rank is not victim])
        for rank in made.ranks:
            rank.hear("step")
        made.leave()
        made.form(newcomers)
    made.leave()
    made.end()
    return seconds


@pytest.mark.parametrize(("work", "frozen"), [("replica", False), ("sharded", True)], ids=["killed", "frozen"])
def test_survivors_are_free_and_form_the_next_group(work, frozen):
    with ranks(work, 3) as made:
        cycle(made, times=1, frozen=frozen)


def half_done(made, *, victim, frozen):
    """One of two goes in the midst of a large copy; what the other is told. Both are in another group then."""
    made.form(made.ranks)
    gone, survivor = made.ranks[victim], made.ranks[1 - victim]
    for rank in made.ranks:
        rank.hear("step")
    gone.heard("step", limit_s=HALF_S)
    (gone.freeze if frozen else gone.kill)()
    if frozen:
        survivor.tell("cut")
    told = survivor.hear("lost", limit_s=FREE_S)["lost"]
    survivor.hear("left", limit_s=FREE_S)
    if frozen:
        gone.kill()
    made.ranks = made.replace(gone)
    return "half of which" in told


def survive_half(work, *, victim, frozen):
    with ranks(work, 2) as made:
        fired = any(half_done(made, victim=victim, frozen=frozen) for _ in range(TRIES))
        made.form(made.ranks)
        made.leave()
        made.end()
    assert fired, "no copy was caught half done"


def test_a_copy_of_which_half_has_come_holds_nobody():
    """gloo tells nobody about such a one, so that it is given up; the process goes on in another group."""
    survive_half("broadcast", victim=0, frozen=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
@pytest.mark.parametrize("victim", [0, 1], ids=["source", "target"])
@pytest.mark.parametrize("work", ["broadcast", "handover"])
def test_a_copy_of_which_half_is_through_holds_nobody(work, victim, frozen):
    survive_half(work, victim=victim, frozen=frozen)


@pytest.mark.exhaustive
@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
@pytest.mark.parametrize("work", WORKS)
def test_thirty_times(work, frozen):
    with ranks(work, 3) as made:
        seconds = cycle(made, times=30, frozen=frozen)
    assert len(seconds) == 60
    print(f"{work}: free after {statistics.median(seconds):.3f} s, at most {max(seconds):.3f} s")


def same(found):
    """Whether every group of a rank began with as many descriptors and threads as its first."""
    return len({(words["sockets"], words["threads"]) for words in found}) == 1


@pytest.mark.exhaustive
def test_twenty_groups_in_one_process_leave_nothing_behind():
    with ranks("sum", 2) as made:
        found = []
        for _ in range(20):
            found.append(made.form(made.ranks))
            made.leave()
        made.end()
    for rank in range(2):
        assert same([words[rank] for words in found]), found


@pytest.mark.exhaustive
@pytest.mark.parametrize("work", WORKS)
def test_twenty_groups_that_broke_leave_nothing_behind(work):
    """The first of two ranks lives through them all; the other dies in each."""
    found = []
    with ranks(work, 2) as made:
        for _ in range(20):
            found.append(made.form(made.ranks)[0])
            victim = made.ranks[1]
            survive(made, victim, frozen=False)
            made.ranks = made.replace(victim)
        made.form(made.ranks)
        made.leave()
        made.end()
    assert same(found), found


IMPORTED_LATE = """
import json, os, sys
import torch
from elastic.distributed.joining import join
from elastic.world import World

def sockets():
    fds = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.islink(fd) and os.readlink(fd).startswith("socket:") for fd in fds)

torch.set_num_threads(1)
found = [sockets()]
group = join(World(rank=0, size=1, generation=1, distributed=True))
found.append(sockets())
assert "torch._dynamo" not in sys.modules, "nothing is left to be imported late"
torch.optim.SGD([torch.nn.Parameter(torch.ones(2))]).zero_grad()
import torch.distributed.fsdp, torch.distributed.nn.functional, torch.distributed.tensor
group.leave()
found.append(sockets())
print(json.dumps([found, torch.distributed.nn.functional.all_reduce.__defaults__[-1] is None]))
"""


def test_what_torch_imports_while_there_is_a_group_does_not_keep_it():
    """A new Python, as a worker that no zygote forked: its first optimizer brings in most of torch."""
    environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", IMPORTED_LATE]
    ran = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    (before, during, after), none_is_default = json.loads(ran.stdout)
    assert during > before == after
    assert none_is_default


def test_a_group_that_does_not_form_is_left_at_a_word():
    """One of three never comes; the two others are freed while they wait for it, and go on without it."""
    with ranks("sum", 2) as made:
        made.invite(made.ranks, size=3)
        for rank in made.ranks:
            rank.hear("joining")
        for rank in made.ranks:
            rank.tell("cut")
        for rank in made.ranks:
            assert rank.hear("lost", limit_s=FREE_S)
        made.form(made.ranks)
        made.leave()
        made.end()


def test_a_rank_that_dies_while_the_group_forms():
    """Its address may be in the store already, so that the others try to reach it."""
    with ranks("sum", 3) as made:
        for _ in range(3):
            *survivors, victim = made.ranks
            made.invite(made.ranks, size=3)
            victim.hear("joining")
            victim.kill()
            for rank in survivors:
                rank.tell("cut")
            for rank in survivors:
                assert rank.hear("lost", limit_s=FREE_S)
            made.ranks = made.replace(victim)
        made.form(made.ranks)
        made.leave()
        made.end()
