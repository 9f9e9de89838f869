"""The lease keeper: it outlasts a stall of the agent, and neither a stop nor the end of it."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.lease import LeasePage
from elastic.rendezvous.coordinator import AgentIdentity, Coordinator
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.lease_keeper import STALLED_S, KeeperProcess, moves
from tests.harness.etcd_admin import options
from tests.harness.until import until

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def hold_the_interpreter_lock(seconds):
    """What a long import or a careless extension does: no other thread of this process runs."""
    ctypes.PyDLL(None).sleep(seconds)


@pytest.fixture
def page():
    page = LeasePage.create()
    yield page
    page.remove()


@pytest.fixture
def make_agent(etcd, page, request):
    made = []

    def make(*, ttl_s, with_keeper=True):
        chosen = options(etcd.endpoint, job_id=request.node.name, ttl_s=ttl_s, first_wait_s=0.0)
        store, keeper = EtcdStore(chosen), KeeperProcess(chosen, page=page, environ=os.environ)
        identity = AgentIdentity(agent=request.node.name, node="a", address="127.0.0.1")
        agent = Coordinator(store, options=chosen, identity=identity, page=page, keeper=keeper if with_keeper else None)
        made.append((agent, store))
        agent.start()
        agent.join()
        return agent, keeper

    yield make
    for agent, store in made:
        agent.stop()
        store.close()


def wait_for_the_keeper(page, ttl_s):
    """Until it has renewed for the first time."""
    until(lambda: page._read(2) > 0, limit_s=10 + ttl_s, what="its first renewal")


@pytest.mark.parametrize(("ttl_s", "stall_s"), [(2, 5), pytest.param(5, 20, marks=pytest.mark.exhaustive)])
def test_a_lease_outlives_a_stall_of_the_whole_agent(make_agent, page, ttl_s, stall_s):
    agent, _ = make_agent(ttl_s=ttl_s)
    wait_for_the_keeper(page, ttl_s)
    lease = agent.lease
    began_s = SYSTEM_CLOCK.monotonic_s()
    hold_the_interpreter_lock(stall_s)
    now_s = SYSTEM_CLOCK.monotonic_s()
    assert now_s - began_s >= stall_s, "the agent stood still"
    assert page.standing(generation=agent.generation, now_s=now_s).holds
    assert agent.commit("after the stall").granted
    assert agent.lease == lease, "its lease had not ended"


def test_without_the_keeper_the_lease_ends(make_agent, page):
    agent, _ = make_agent(ttl_s=2, with_keeper=False)
    lease = agent.lease
    hold_the_interpreter_lock(5)
    assert not page.standing(generation=agent.generation, now_s=SYSTEM_CLOCK.monotonic_s()).holds
    until(lambda: agent.lease != lease, limit_s=10, what="that the keys are written again")


def test_a_keeper_that_died_is_replaced(make_agent, page):
    _, keeper = make_agent(ttl_s=2)
    wait_for_the_keeper(page, 2)
    old = keeper.pid
    os.kill(old, signal.SIGKILL)
    until(lambda: keeper.pid not in (None, old), limit_s=10, what="a new keeper")


AGENT = """
import os
import sys
from elastic.lease import LeasePage
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.lease_keeper import KeeperProcess
from tests.harness.etcd_admin import options
page = LeasePage.create()
chosen = options(sys.argv[1], ttl_s=2)
store = EtcdStore(chosen)
lease = store.grant(2)
store.put("/kept/" + sys.argv[2], "here", lease=lease)
keeper = KeeperProcess(chosen, page=page, environ=os.environ)
keeper.keep(lease)
print(keeper.pid, page.path, flush=True)
sys.stdin.read()
page.remove()
"""


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
def test_a_stopped_or_dead_agent_loses_its_lease(etcd, fault):
    command = [sys.executable, "-c", AGENT, etcd.endpoint, fault.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        store = EtcdStore(options(etcd.endpoint))
        try:
            keeper, place = agent.stdout.readline().split()
            page = LeasePage(Path(place))
            wait_for_the_keeper(page, 2)
            SYSTEM_CLOCK.sleep(3)
            assert store.get("/kept/" + fault.name) is not None, "kept for longer than its own length"
            agent.send_signal(fault)
            until(lambda: store.get("/kept/" + fault.name) is None, limit_s=6, what="the end of the lease")
            assert not page.standing(generation=0, now_s=SYSTEM_CLOCK.monotonic_s()).holds
            agent.kill()
            until(lambda: not is_running(int(keeper)), limit_s=2, what="the keeper's end")
        finally:
            agent.kill()
            store.close()
            page.remove()


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_an_agent_that_has_not_moved_for_a_minute_counts_as_dead():
    assert moves(os.getpid(), heard_s=100.0, now_s=100.0 + STALLED_S - 1)
    assert not moves(os.getpid(), heard_s=100.0, now_s=100.0 + STALLED_S)
    assert not moves(2**22 + 1, heard_s=100.0, now_s=100.0), "nobody has that pid"
