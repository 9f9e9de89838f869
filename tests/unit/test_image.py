"""The Dockerfile and the compose file: clean by hadolint, pinned, without rights, and with our own rules mounted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from elastic import __version__
from tests.harness.manifests import program

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
FINAL = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())
SCRIPTS = sorted(
    [*(ROOT / "docker").glob("*.sh"), *(ROOT / "deploy").rglob("*.sh"), *(ROOT / "deploy").rglob("*.sbatch")]
)
MARGIN_S = 15


def pins(path: Path) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([^\s\\]+)", path.read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in found}


def test_hadolint_has_nothing_to_say():
    done = subprocess.run(
        [program("hadolint"), "--format", "json", str(ROOT / "docker" / "Dockerfile")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout) == []
    assert done.returncode == 0


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed (Debian: shellcheck)")
def test_shellcheck_has_nothing_to_say():
    done = subprocess.run(["shellcheck", *SCRIPTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_parsed_and_started(script):
    shell = script.read_text().splitlines()[0].rpartition("/")[2]
    assert subprocess.run([shell, "-n", str(script)], capture_output=True, check=False).returncode == 0
    assert script.stat().st_mode & 0o111


def test_the_image_runs_as_nobody_in_particular_under_an_init_that_signals_the_agent_alone():
    assert re.search(r"^USER (\d{5}):\1$", FINAL, re.MULTILINE)
    assert json.loads(re.search(r"^ENTRYPOINT (\[.*\])$", FINAL, re.MULTILINE)[1]) == [
        "dumb-init",
        "--single-child",
        "--",
    ]
    command = json.loads(re.search(r"^CMD (\[.*\])$", FINAL, re.MULTILINE)[1])
    assert command == ["torchrun", "--nnodes=1:4", "--rdzv_backend=etcd", "elastic/worker.py"]
    assert "HEALTHCHECK" in FINAL
    assert "/livez" in FINAL, "readiness ends while others are awaited"
    for label in ("title", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in FINAL
    assert f"ARG VERSION={__version__}\n" in FINAL


def test_nothing_is_compiled_or_fetched_in_the_final_stage():
    for word in ("apt-get", "pip install", "curl", "wget", "gcc", "build-essential"):
        assert word not in FINAL
    assert DOCKERFILE.startswith("# ")
    assert re.search(r"^ARG BASE_IMAGE=", DOCKERFILE, re.MULTILINE)
    assert DOCKERFILE.count("FROM ${BASE_IMAGE}") == 2


def test_the_lock_pins_all_that_the_package_asks_for_as_it_is_tested_and_by_hash():
    text = (ROOT / "docker" / "requirements.lock").read_text()
    locked, tested = pins(ROOT / "docker" / "requirements.lock"), pins(ROOT / "constraints.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["object-store"]]
    names = {re.match(r"[\w.-]+", each)[0] for each in asked}
    assert names <= locked.keys()
    assert {name: version.partition("+")[0] for name, version in locked.items() if name in tested} == {
        name: tested[name] for name in locked.keys() & tested.keys()
    }
    blocks = re.split(r"\n(?=[\w.-]+==)", text.strip())
    assert len(blocks) == len(locked)
    assert all("--hash=sha256:" in block for block in blocks)


def services(name: str) -> dict[str, dict]:
    return {key: value for key, value in COMPOSE["services"].items() if re.fullmatch(rf"{name}\d+", key)}


def test_compose_has_four_nodes_and_three_members_with_names_of_their_own():
    assert len(services("node")) == 4
    assert {value["environment"]["ELASTIC_NODE"] for value in services("node").values()} == services("node").keys()
    assert len(services("etcd")) == 3
    members = services("etcd")["etcd0"]["environment"]["ETCD_INITIAL_CLUSTER"]
    assert [each.partition("=")[0] for each in members.split(",")] == list(services("etcd"))
    for name, value in services("etcd").items():
        assert value["environment"]["ETCD_ADVERTISE_CLIENT_URLS"] == f"http://{name}:2379"


def test_composed_containers_have_no_rights_and_listen_to_this_machine_only():
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["image"].count(":") >= 2, f"{name}: which version?"
        assert not service["image"].endswith("latest}")
        assert service.get("read_only") or name == "grafana", name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name


def test_a_node_may_finish_and_save_before_it_is_killed():
    for service in services("node").values():
        timeout_s = next(int(each.partition("=")[2]) for each in service["command"] if "--shutdown-timeout" in each)
        assert int(service["stop_grace_period"].removesuffix("s")) >= timeout_s + MARGIN_S


def test_our_rules_and_our_dashboard_are_what_compose_mounts():
    sources = {
        name: [each.partition(":")[0] for each in service.get("volumes", ())]
        for name, service in COMPOSE["services"].items()
    }
    assert "../prometheus/rules.yaml" in sources["prometheus"]
    assert "../grafana/dashboard.json" in sources["grafana"]
    for source in (each for several in sources.values() for each in several):
        assert not source.startswith(".") or (ROOT / "deploy" / "compose" / source).exists(), source
    prometheus = yaml.safe_load((ROOT / "deploy" / "compose" / "prometheus.yaml").read_text())
    targets = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"{name}:9400" for name in services("node")]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_agrees_with_the_configuration(tmp_path):
    for source in ("compose/prometheus.yaml", "prometheus/rules.yaml"):
        shutil.copy(ROOT / "deploy" / source, tmp_path)
    done = subprocess.run(
        ["promtool", "check", "config", "prometheus.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
