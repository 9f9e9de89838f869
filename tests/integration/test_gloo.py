"""Real gloo groups of real processes: what collectives carry, how a lost peer looks, and the promise of a step."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elastic.distributed.group import Alone
from tests.harness.training import train

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60
VALUES = ["ü 漢字 \u2028\n", "", None, [], {}, {"a": [1, 2.5, None, True]}, "x" * 2_000_000, 2**60, -0.1]


def start(role, size, directory, *, ranks=None):
    """One process for each rank, meeting over a store that rank 0 serves."""
    directory.mkdir(exist_ok=True)
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "STORE_FILE": str(directory / "port"),
    }
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.harness.gloo_rank", role],
            cwd=ROOT,
            env={**environ, "RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (range(size) if ranks is None else ranks)
    ]


def results(processes, *, limit_s=LIMIT_S):
    """The last line of each, as JSON."""
    found = []
    for process in processes:
        out, err = process.communicate(timeout=limit_s)
        assert process.returncode == 0, err
        found.append(json.loads(out.splitlines()[-1]))
    return found


def test_values_cross_as_they_are(tmp_path):
    gathered, *others = results(start("values", 3, tmp_path))
    assert gathered["gathered"] == [[[rank, value] for rank in range(3)] for value in VALUES]
    for found in others:
        assert found["gathered"] == [None] * len(VALUES)
    for found in (gathered, *others):
        assert found["broadcast"] == VALUES


def test_three_processes_train_as_one(tmp_path):
    expected = train(Alone(), dropout=0.2)
    for found in results(start("train", 3, tmp_path)):
        assert found["losses"] == pytest.approx(expected.losses, rel=1e-6)
        assert torch.allclose(torch.tensor(found["parameters"]).double(), expected.parameters, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "role",
    ["sum", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("gather", "broadcast")), "sharded steps"],
)
def test_a_peer_killed_in_a_collective_is_a_lost_peer(role, tmp_path):
    survivor, victim = start(role, 2, tmp_path)
    for process in (survivor, victim):
        assert process.stdout.readline().strip() == "joined"
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    survivor.stdin.write("go\n")
    (found,) = results([survivor])
    assert found["error"] == "PeerLost", found
    assert "a peer went away while" in found["text"]


def test_a_peer_killed_while_the_other_waits_inside(tmp_path):
    survivor, victim = start("sum", 2, tmp_path)
    for process in (survivor, victim):
        assert process.stdout.readline().strip() == "joined"
    survivor.stdin.write("go\n")
    survivor.stdin.flush()
    assert survivor.stdout.readline().strip() == "going"
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    (found,) = results([survivor])
    assert found["error"] == "PeerLost", found


def test_tensors_of_different_lengths_are_no_lost_peer(tmp_path):
    """gloo itself may abort one of them: then that one ends by a signal, which is a failure of its own as well."""
    processes = start("mismatch", 2, tmp_path)
    ended = [(process.communicate(timeout=LIMIT_S)[0], process.returncode) for process in processes]
    own = [code != 0 or json.loads(out.splitlines()[-1])["error"] not in (None, "PeerLost") for out, code in ended]
    assert any(own), ended


def test_a_mistake_is_no_lost_peer(tmp_path):
    for found in results(start("mistake", 2, tmp_path)):
        assert found["error"] not in (None, "PeerLost"), found


@pytest.mark.exhaustive
def test_a_peer_that_never_comes_is_a_lost_peer(tmp_path):
    (found,) = results(start("lonely", 2, tmp_path, ranks=[0]))
    assert found["error"] == "PeerLost"
    assert "the group of this generation formed" in found["text"]


def test_a_store_that_is_gone_is_a_lost_peer(tmp_path):
    (found,) = results(start("no_store", 2, tmp_path, ranks=[1]))
    assert found["error"] == "PeerLost"


@pytest.mark.parametrize("size", [3, pytest.param(5, marks=pytest.mark.exhaustive)])
def test_processes_with_dealt_out_parameters_train_as_one(size, tmp_path):
    """4 slots on 3 ranks are 2, 1 and 1; of 5 ranks the last has none and stands in."""
    expected = train(Alone(), dropout=0.2, most_norm=1.0)
    found = results(start("sharded", size, tmp_path))
    for each in found:
        assert each["losses"] == pytest.approx(expected.losses, rel=1e-6)
        assert each["norms"] == pytest.approx(expected.norms, rel=1e-6)
        assert torch.allclose(torch.tensor(each["parameters"]).double(), expected.parameters, rtol=0, atol=1e-6)
    used = sorted(tuple(span) for each in found for span in each["used"])
    assert used[0][0] == 0
    assert all(before[1] == after[0] for before, after in itertools.pairwise(used))
    assert used[-1][1] == 10 * len(expected.losses)
