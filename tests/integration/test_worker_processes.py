"""A node's worker processes: real children, waited for without polling, ended with all that they had forked."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.launch.processes import WakePipe, WorkerProcesses
from elastic.lifetime import AGENT_PID

pytestmark = pytest.mark.integration

LIMIT_S = 20.0
WAIT = "import sys; print(flush=True); sys.stdin.read()"
FORK = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
sys.exit(int(sys.stdin.readline() or 0))
"""


@pytest.fixture
def nursery():
    """Starts children as torch starts workers, and watches them."""
    before = set(os.listdir("/proc/self/fd"))
    wake, children, watched = WakePipe(), {}, []

    def start(*scripts):
        for local_rank, script in enumerate(scripts):
            children[local_rank] = subprocess.Popen(
                [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        watched.append(WorkerProcesses(children, wake=wake, clock=SYSTEM_CLOCK))
        return watched[0], [children[local_rank] for local_rank in range(len(scripts))]

    yield start, wake
    for workers in watched:
        workers.kill()
        workers.close()
    wake.close()
    wake.wake()  # a late one does nothing
    for child in children.values():
        child.stdout.close()
        child.stdin.close()
    assert set(os.listdir("/proc/self/fd")) == before


def gone(pid):
    """Whether a process has ended; it may wait to be reaped by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def reap(pid):
    """Tests adopt orphans: wait for one of them to end."""
    assert os.waitpid(pid, 0)[0] == pid


def test_ends_are_noticed_in_their_order(nursery):
    start, _ = nursery
    workers, children = start(WAIT, "import sys; sys.exit(7)", WAIT)
    while 1 not in workers.ended:
        assert workers.wait(limit_s=LIMIT_S)
    assert workers.running
    assert workers.failed
    children[0].kill()
    while 0 not in workers.ended:
        assert workers.wait(limit_s=LIMIT_S)
    children[2].stdin.close()
    workers.let_end(limit_s=LIMIT_S)
    ends = sorted((end.order, end.local_rank, end.exit_code) for end in workers.ended.values())
    assert ends == [(0, 1, 7), (1, 0, -signal.SIGKILL), (2, 2, 0)]
    assert workers.killed == set(), "none of these was ours"


def test_a_wait_ends_by_a_wake_up_or_at_its_limit(nursery):
    start, wake = nursery
    workers, _ = start(WAIT)
    assert not workers.wait(limit_s=0.01)
    threading.Timer(0.02, wake.wake).start()
    assert workers.wait(limit_s=LIMIT_S)
    for _ in range(100_000):
        wake.wake()  # never blocks, however full
    assert workers.wait(limit_s=LIMIT_S)
    assert not workers.wait(limit_s=0), "all of them were one"
    assert workers.running
    assert not workers.failed


def test_who_does_not_end_in_time_is_killed_with_all_that_it_forked(nursery):
    start, _ = nursery
    workers, (child,) = start(FORK)
    grandchild = int(child.stdout.readline())
    workers.let_end(limit_s=0.05)
    assert workers.killed == {child.pid}
    assert workers.ended[0].exit_code == -signal.SIGKILL
    reap(grandchild)


def test_hurry_cuts_the_time_short(nursery):
    start, wake = nursery
    workers, (child,) = start(WAIT)
    child.stdout.readline()
    asked = []
    threading.Timer(0.02, lambda: (asked.append(1), wake.wake())).start()
    workers.let_end(limit_s=600, hurry=lambda: bool(asked))
    assert workers.killed == {child.pid}


def test_a_broken_worker_leaves_no_children_and_a_good_one_keeps_its_own(nursery):
    start, _ = nursery
    workers, (good, broken) = start(FORK, FORK)
    kept, orphan = (int(child.stdout.readline()) for child in (good, broken))
    try:
        broken.stdin.write(b"3\n")
        broken.stdin.close()
        while 1 not in workers.ended:
            assert workers.wait(limit_s=LIMIT_S)
        reap(orphan)
        good.stdin.close()
        workers.let_end(limit_s=LIMIT_S)
        assert workers.ended[0].exit_code == 0
        assert not gone(kept)
    finally:
        os.kill(kept, signal.SIGKILL)
        reap(kept)


def test_a_worker_that_ended_before_it_is_watched_and_one_that_was_quicker_than_our_kill(nursery):
    start, _ = nursery
    code = "import sys; print(flush=True); sys.exit(5)"
    workers, (first, second) = start(code, code)
    for child in (first, second):
        child.stdout.read()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie by now
    workers.kill()
    assert [workers.ended[n].exit_code for n in range(2)] == [5, 5]
    assert workers.killed == set(), "their ends are their own"


LIFE = """
import os, sys
sys.path.insert(0, {root!r})
from elastic.lifetime import die_with_agent
{before}
die_with_agent(os.environ)
print("on", os.getpid(), flush=True)
import time
time.sleep(600)
"""
ROOT = str(Path(__file__).resolve().parents[2])


def agent_process(script, *, stdout):
    """An "agent" that starts a worker with its own pid in the environment and then waits."""
    code = (
        "import os, subprocess, sys\n"
        f"os.environ[{AGENT_PID!r}] = str(os.getpid())\n"
        "worker = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)\n"
        "sys.stdin.read()\n"
    )
    return subprocess.Popen([sys.executable, "-c", code, script], stdin=subprocess.PIPE, stdout=stdout)


def test_a_worker_dies_with_its_agent():
    with agent_process(LIFE.format(root=ROOT, before=""), stdout=subprocess.PIPE) as agent:
        worker = int(agent.stdout.readline().split()[1])
        agent.kill()
    _, status = os.waitpid(worker, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_an_agent_that_died_before_its_worker_asked_is_noticed(tmp_path):
    os.mkfifo(tmp_path / "go")
    before = f"print('up', os.getpid(), flush=True); open({str(tmp_path / 'go')!r}).read()"
    with agent_process(LIFE.format(root=ROOT, before=before), stdout=subprocess.PIPE) as agent:
        worker = int(agent.stdout.readline().split()[1])
        agent.kill()
        agent.wait()
        (tmp_path / "go").write_text("go")
        assert agent.stdout.readline() == b"", "it did not go on"
    _, status = os.waitpid(worker, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.parametrize("agent", [None, "ours"])
def test_without_an_agent_or_below_a_wrapper_a_worker_just_lives(agent):
    environ = dict(os.environ) | ({AGENT_PID: str(os.getpid())} if agent else {})
    wrapped = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    command = [sys.executable, "-c", wrapped, LIFE.format(root=ROOT, before="")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, start_new_session=True) as wrapper:
        assert wrapper.stdout.readline().startswith(b"on")
        os.killpg(wrapper.pid, signal.SIGKILL)
