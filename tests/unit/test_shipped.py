"""Files for systemd, Slurm, SkyPilot and TorchX: they go by our exit codes, and leave time for the last save."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from elastic.errors import ExitCode

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "elastic-agent.service"
SBATCH = (DEPLOY / "slurm" / "train.sbatch").read_text()
SKY = yaml.safe_load((DEPLOY / "skypilot" / "train.yaml").read_text())
MARGIN_S = 15
AGAIN = {ExitCode.PREEMPTED, ExitCode.FENCED}
NEVER = {ExitCode.USAGE, ExitCode.NO_PROGRESS}


def shutdown_s(command: str) -> int:
    return int(re.search(r"--shutdown-timeout=\D*(\d+)", command)[1])


@pytest.fixture(scope="module")
def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=True, interpolation=None)
    parser.optionxform = str
    parser.read(UNIT)
    return parser["Service"]


def test_systemd_starts_again_what_can_be_started_again(unit):
    assert unit["Restart"] == "on-failure"
    assert {int(code) for code in unit["RestartPreventExitStatus"].split()} == NEVER
    assert int(unit["TimeoutStopSec"]) >= shutdown_s(unit["ExecStart"]) + MARGIN_S
    assert unit["KillMode"] == "mixed", "workers must not hear of the stop, loader processes least of all"
    assert unit["NoNewPrivileges"] == "yes"
    assert unit["CapabilityBoundingSet"] == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_in_the_unit_but_the_missing_program(tmp_path):
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/elastic/bin/torchrun", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_slurm_queues_it_again_and_tells_the_agents_alone():
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", SBATCH, re.MULTILINE))
    assert options.keys() >= {"requeue", "no-kill", "ntasks-per-node", "open-mode", "signal"}
    assert options["open-mode"] == "append"
    name, _, before_s = options["signal"].partition("@")
    assert int(before_s) >= shutdown_s(SBATCH) + MARGIN_S
    assert f"SIG{name}" in re.search(r"--signals-to-handle=(\S+)", SBATCH)[1].split(",")
    assert {int(code) for code in re.findall(r"\$code == (\d+)", SBATCH)} == AGAIN
    assert "--kill-on-bad-exit=0" in SBATCH


def test_skypilot_goes_by_our_exit_codes():
    recovery = SKY["resources"]["job_recovery"]
    assert set(recovery["recover_on_exit_codes"]) == AGAIN
    assert "://" in SKY["envs"]["SAVE_PATH"], "its disks go with their machines"
    assert shutdown_s(SKY["run"]) <= 120 - MARGIN_S, "notice of spot machines is two minutes at most"


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # theirs
def test_skypilot_and_torchx_take_their_files():
    """By their own packages, where these are installed."""
    if importlib.util.find_spec("sky") is None or importlib.util.find_spec("torchx") is None:
        pytest.skip("needs the packages skypilot and torchx")
    import sky
    from torchx.specs.builders import materialize_appdef
    from torchx.specs.finder import get_component

    assert sky.Task.from_yaml(str(DEPLOY / "skypilot" / "train.yaml")).num_nodes == 4
    component = get_component(f"{DEPLOY / 'torchx' / 'component.py'}:elastic")
    (role,) = materialize_appdef(component.fn, ["--etcd", "etcd:2379"]).roles
    assert role.num_replicas == 4
    assert "--rdzv-id=${app_id}" in role.args
