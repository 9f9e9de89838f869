"""Real processes with dealt out parameters: what one world saves any other restores bit by bit, and goes on from."""

import datetime
import itertools
import json
import os
import subprocess
import sys

import pytest
import torch.distributed as dist

from elastic.checkpoint.layout import METADATA
from tests.harness.strict_reader import read_root
from tests.integration.test_gloo import ROOT, results

pytestmark = pytest.mark.integration

QUICK = [(3, "fsdp2"), (2, "fsdp2"), (1, "replicate"), (3, "fsdp2"), (2, "replicate"), (2, "fsdp2")]
ALL = [(4, "fsdp2")]
for _size in (1, 2, 3, 5, 8):
    ALL += [(_size, "fsdp2"), (4, "fsdp2"), (_size, "replicate"), (4, "fsdp2"), (_size, "fsdp2"), (4, "replicate")]


ONE_LESS = [(3, "fsdp2"), (2, "fsdp2"), (1, "replicate"), (2, "fsdp2"), (2, "replicate"), (3, "fsdp2"), (3, "fsdp2")]
"""No world lacks more than one node of the one before: memory has everything."""
OFTEN = [(size, "fsdp2") for size in (2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 2, 8, 7, 4, 4, 3, 5, 4, 2, 2, 6, 5)]


@pytest.mark.parametrize("plan", [QUICK, pytest.param(ALL, marks=pytest.mark.exhaustive)], ids=["quick", "all"])
def test_any_world_restores_what_any_other_saved(plan, tmp_path):
    stages = live(plan, tmp_path)
    assert {stage["tier"] for stage in stages if stage["at"] > 1} == {"disk"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("plan", [ONE_LESS, OFTEN], ids=["quick", "often"])
def test_the_same_from_memory_where_no_more_than_one_node_is_lost_at_a_time(plan, tmp_path):
    stages = live(plan, tmp_path, SHARDS_MEMORY=str(tmp_path / "memory"))
    known = itertools.pairwise(plan)
    lost = {at for at, ((before, _), (size, _)) in enumerate(known, start=2) if size < before - 1}
    for stage in stages:
        if stage["at"] > 1:
            assert stage["tier"] == ("disk" if stage["at"] in lost else "memory"), stage["at"]


STAYING = [(size, "fsdp2") for size in (2, 3, 4, 3, 2, 1, 2, 1, 2, 3, 2, 3, 2, 3, 4, 3, 2, 3, 2, 3)]


@pytest.mark.exhaustive
def test_processes_that_keep_their_model_and_optimizer_and_leave_each_world_in_the_midst_of_a_pass(tmp_path):
    stages = live(STAYING, tmp_path, SHARDS_MEMORY=str(tmp_path / "memory"), SHARDS_STAY="1")
    assert {stage["tier"] for stage in stages if stage["at"] > 1} == {"memory"}
    # Of the groups before nothing stays open.
    *_, two, three, two_again, three_again = [stage["links"] for stage in stages if stage["rank"] == 0]
    assert (two, three) == (two_again, three_again)


def live(plan, tmp_path, **more):
    """Every stage of every rank: all have the same bits, and what is on disk is what the format says."""
    ranks = max(size for size, _ in plan)
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(seconds=60), wait_for_workers=False
    )
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
        "SHARDS_PLAN": json.dumps(plan),
        "SHARDS_ROOT": str(tmp_path / "root"),
        **more,
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.harness.gloo_shards"],
            cwd=ROOT,
            env={**environ, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        told = results(processes, limit_s=60 + 10 * len(plan))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    stages = [each for of_rank in told for each in of_rank]
    assert len(stages) == sum(size for size, _ in plan)
    expected = told[0][0]["digests"]
    assert {name.partition(".")[0] for name in expected} >= {"blocks", "optimizer", "masters", "schedule", "of_bool"}
    for stage in stages:
        assert stage["saved"], stage["reason"]
        differing = [name for name in expected if stage["digests"].get(name) != expected[name]]
        assert (differing, stage["digests"].keys()) == ([], expected.keys()), stage["at"]
    read_root(tmp_path / "root")
    for at, (size, strategy) in enumerate(plan, start=1):
        directory = tmp_path / "root" / f"iteration_{at:08d}"
        if directory.exists():
            facts = json.loads((directory / METADATA).read_text())["state_dict_metadata"]
            dealt = size > 1 and strategy == "fsdp2"
            for name in (
                "embed.weight",
                "blocks.1.wide.weight",
                "exp_avg.embed.weight",
                "masters.main_param.blocks.1.wide.weight",
            ):
                assert (facts[name]["axis_fragmentations"][0] > 1) == dealt, (at, name)
    return stages
