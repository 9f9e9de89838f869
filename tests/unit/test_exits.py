"""What the ends of a node's workers mean: every combination, and by a second, naive reading."""

import signal

import pytest

from elastic.errors import ExitCode
from elastic.events import Cause
from elastic.launch.exits import Ending, WorkerExit, cause_of, describe, fault_of, judge
from elastic.link import Failure

DONE, REGROUP, PEER_LOST, PREEMPTED = (
    int(code) for code in (ExitCode.DONE, ExitCode.REGROUP, ExitCode.PEER_LOST, ExitCode.PREEMPTED)
)
KILLED = -signal.SIGKILL


def told(code, *, step=3, text="Traceback\n\nValueError: bad"):
    return Failure(exit_code=code, step=step, signature=f"sig{code}", text=text)


def end(code, *, rank=0, order=0, failure=None):
    return WorkerExit(rank=rank, pid=1000 + rank, exit_code=code, order=order, told=failure)


def verdict(*ends, killed=()):
    return judge(ends, step=5, committed_steps=2, killed=frozenset(1000 + rank for rank in killed))


ONE = {
    "finished": (end(DONE), Ending.FINISHED, None),
    "regroup": (end(REGROUP), Ending.REGROUP, None),
    "preempted": (end(PREEMPTED), Ending.REGROUP, None),
    "peer lost": (end(PEER_LOST), Ending.FAILED, Cause.PEER_LOST),
    "exception": (end(1, failure=told(1)), Ending.FAILED, Cause.WORKER_EXIT),
    "silent exit": (end(3), Ending.FAILED, Cause.WORKER_EXIT),
    "usage": (end(64, failure=told(64)), Ending.FAILED, Cause.WORKER_EXIT),
    "fenced": (end(76), Ending.FAILED, Cause.WORKER_EXIT),
    "signal": (end(KILLED), Ending.FAILED, Cause.WORKER_SIGNAL),
    "crash after PeerLost": (end(-signal.SIGSEGV, failure=told(PEER_LOST)), Ending.FAILED, Cause.PEER_LOST),
    "crash after Regroup": (end(-signal.SIGABRT, failure=told(REGROUP)), Ending.REGROUP, None),
    "crash after an exception": (end(-signal.SIGABRT, failure=told(1)), Ending.FAILED, Cause.WORKER_EXIT),
    "0 after an exception": (end(DONE, failure=told(1)), Ending.FAILED, Cause.WORKER_EXIT),
}


@pytest.mark.parametrize("name", ONE)
def test_one_worker(name):
    worker, ending, cause = ONE[name]
    found = verdict(worker)
    assert found.ending is ending
    assert (found.report.cause if found.report else None) == cause
    assert found.reason


@pytest.mark.parametrize("first", ONE)
def test_two_workers_the_worst_counts(first):
    for second in ONE:
        assert_the_worst_counts(first, second)


def assert_the_worst_counts(*names):
    """A guilty one beats a lost peer beats a regroup; finished only if both are."""
    kinds = [ONE[name] for name in names]
    ends = [
        WorkerExit(rank=rank, pid=1000 + rank, exit_code=kind[0].exit_code, order=rank, told=kind[0].told)
        for rank, kind in enumerate(kinds)
    ]
    found = verdict(*ends)
    guilty = [rank for rank, kind in enumerate(kinds) if kind[2] not in (None, Cause.PEER_LOST)]
    lost = [rank for rank, kind in enumerate(kinds) if kind[2] is Cause.PEER_LOST]
    if guilty or lost:
        assert found.ending is Ending.FAILED
        assert found.root.rank == (guilty or lost)[0]
        assert found.report.rank == found.root.rank
    else:
        finished = all(kind[1] is Ending.FINISHED for kind in kinds)
        assert found.ending is (Ending.FINISHED if finished else Ending.REGROUP)
        assert found.report is None
    in_order = not lost and any(kind[1] is Ending.REGROUP for kind in kinds)
    without_guilt = Cause.WORKER_SIGNAL if in_order else Cause.PEER_LOST
    assert fault_of(ends) is (kinds[guilty[0]][2] if guilty else without_guilt)


def test_the_first_of_several_guilty_is_the_root():
    found = verdict(end(1, rank=0, order=2), end(KILLED, rank=1, order=0), end(64, rank=2, order=1))
    assert (found.root.rank, found.report.signature) == (1, "exit -9")


def test_what_we_killed_says_nothing():
    assert verdict(end(REGROUP), end(KILLED, rank=1), killed=[1]).ending is Ending.REGROUP
    assert verdict(end(DONE), end(KILLED, rank=1), killed=[1]).ending is Ending.REGROUP
    assert verdict(end(KILLED), end(KILLED, rank=1), killed=[0, 1]).ending is Ending.REGROUP
    assert verdict(end(PEER_LOST), end(KILLED, rank=1), killed=[1]).root.rank == 0


def test_the_report():
    report = verdict(end(1, rank=4, failure=told(1, step=9))).report
    assert (report.rank, report.step, report.committed_steps, report.exit_code) == (4, 9, 2, 1)
    assert (report.signature, report.text) == ("sig1", "Traceback\n\nValueError: bad")
    assert verdict(end(1, failure=told(1, step=2))).report.step == 5
    silent = verdict(end(KILLED, rank=4)).report
    assert (silent.step, silent.text) == (5, "worker 4 (pid 1004) was killed by SIGKILL")


def test_one_that_hung_is_not_one_that_somebody_killed():
    hung = WorkerExit(rank=1, pid=11, exit_code=-9, order=0, hung="step for 61.0 s")
    found = judge([hung], step=7, committed_steps=7, killed=frozenset())
    assert found.reason == "worker 1 (pid 11) hung: step for 61.0 s"
    assert found.report is not None
    assert (found.report.cause, found.report.signature) == ("worker_hung", "hang")


def test_words():
    assert describe(end(1, failure=told(1))).endswith("ended with exit code 1: ValueError: bad")
    assert describe(end(1, failure=told(1, text=" \n"))).endswith("ended with exit code 1")
    assert describe(end(-63)).endswith("was killed by signal 63")
    assert describe(end(PEER_LOST)) == "worker 0 lost a peer"
    assert cause_of(end(-11, failure=told(PEER_LOST))) is Cause.PEER_LOST


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("Traceback\nOSError: [Errno 28] No space left on device: '/data/x'", True),
        ("OSError: [Errno 5] Input/output error\n", True),
        ("Traceback\nOSError: [Errno 28] first\n\nValueError: bad", False),
        ("FileNotFoundError: [Errno 2] No such file or directory", False),
        ("", False),
    ],
)
def test_a_bad_disk_is_the_nodes_own(text, local):
    found = verdict(end(70, failure=told(70, text=text)))
    assert found.report.node_local is local
