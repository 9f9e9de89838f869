"""The pods of the manifests, run by `podman play kube`: what a cluster would start trains, leaves and comes back."""

from __future__ import annotations

import copy
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic.data.audit import account
from elastic.errors import ExitCode
from elastic.events import Record, StepCommitted, read_records
from elastic.local.follow import Follower
from tests.harness.containers import IMAGE, STAND_INS, engine, events_in, require
from tests.harness.manifests import pod_templates, render

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

CLAIM = "kube-test-checkpoint"


@pytest.fixture(scope="module")
def engine_is_there() -> None:
    """Before any test looks around: podman keeps a lock file in /dev/shm from its first command on."""
    require(IMAGE, STAND_INS)


class Pods:
    """Pods made from templates, by name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: list[str] = []

    def play(self, name: str, template: dict[str, Any], *, index: int, environ: dict[str, str]) -> None:
        """Start a pod as a cluster would: with the labels of its job, and variables filled in."""
        pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(template)}
        pod["metadata"] = {"name": name, "labels": template["metadata"]["labels"]}
        values = {"INDEX": str(index), "JOB_UID": "kube-test", **environ}
        for container in pod["spec"]["containers"]:
            # What is left to the kubelet: probes by name of a port, and references to variables.
            container.pop("livenessProbe", None)
            container.pop("readinessProbe", None)
            container.pop("ports", None)  # podman would take them from this machine
            variables = {
                each["name"]: values.get(each["name"], each.get("value", "")) for each in container.get("env", ())
            }
            variables |= environ
            container["env"] = [{"name": key, "value": _filled(value, values)} for key, value in variables.items()]
            container["args"] = [_filled(word, values) for word in container.get("args", ())]
            container["image"] = IMAGE if container["name"] == "node" else STAND_INS
        for volume in pod["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                volume["persistentVolumeClaim"]["claimName"] = CLAIM
        # podman gives all pods that name an empty directory alike the same one.
        mine = {each["name"]: f"{name}-{each['name']}" for each in pod["spec"]["volumes"]}
        for each in (*pod["spec"]["volumes"], *pod["spec"]["containers"][0]["volumeMounts"]):
            each["name"] = mine[each["name"]]
        file = self._directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump(pod))
        self._names.append(name)
        engine("podman", "play", "kube", str(file))

    def container(self, name: str) -> dict[str, Any]:
        """The one container of a pod, as podman knows it."""
        kind = "etcd" if "etcd" in name else "node"
        found: list[dict[str, Any]] = json.loads(engine("podman", "container", "inspect", f"{name}-{kind}"))
        return found[0]

    def address(self, name: str) -> str:
        """Its pod's address."""
        infra = json.loads(engine("podman", "pod", "inspect", name))["InfraContainerID"]
        networks = json.loads(engine("podman", "container", "inspect", infra))[0]["NetworkSettings"]["Networks"]
        return str(next(iter(networks.values()))["IPAddress"])

    def stop(self, name: str, *, grace_s: int) -> None:
        """As the kubelet does: the network stays until the end. `podman pod stop` takes it away at once."""
        engine("podman", "stop", "-t", str(grace_s), f"{name}-node")

    def end(self) -> None:
        for name in self._names:
            engine("podman", "pod", "rm", "-f", "-t", "1", name, check=False)
        volumes = engine("podman", "volume", "ls", "-q").split()
        mine = [each for each in volumes if each == CLAIM or each.startswith(tuple(f"{name}-" for name in self._names))]
        engine("podman", "volume", "rm", "-f", *mine, check=False)


def _filled(text: str, values: dict[str, str]) -> str:
    """As the kubelet fills in $(NAME)."""
    for name, value in values.items():
        text = text.replace(f"$({name})", value)
    return text


@pytest.fixture
def pods(tmp_path: Path, engine_is_there: None) -> Iterator[Pods]:
    made = Pods(tmp_path)
    try:
        yield made
    finally:
        made.end()


def steps_of(run: Follower, world_size: int, *, more: int, limit_s: float = 60) -> None:
    """Wait for some more steps in a world of this size."""
    run.read()
    count = 0

    def enough(record: Record) -> bool:
        nonlocal count
        count += isinstance(record.event, StepCommitted) and record.event.world_size == world_size
        return count >= more

    run.wait_for(enough, what=f"{more} steps of a world of {world_size}", limit_s=limit_s, since=len(run.records))


def test_pods_train_leave_in_order_are_killed_and_come_back(pods: Pods) -> None:
    templates = dict(pod_templates(render("development")))
    pods.play("kt-etcd", templates["Deployment/etcd"], index=0, environ={})
    environ = {
        "ETCD_ENDPOINTS": f"{pods.address('kt-etcd')}:2379",
        "ELASTIC__TRAINING__STEPS": "100000",
        "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "20",
    }
    names = ("kt-node-0", "kt-node-1", "kt-node-2")
    for index, name in enumerate(names):
        pods.play(name, templates["Job/training"], index=index, environ=environ)
    for name in names:
        found = pods.container(name)
        assert found["Config"]["User"].startswith("10001")
        assert found["HostConfig"]["ReadonlyRootfs"]
        assert found["EffectiveCaps"] in (None, [])
    events = events_in(Path(engine("podman", "volume", "inspect", "-f", "{{.Mountpoint}}", CLAIM).strip()))
    with Follower(events) as run:
        steps_of(run, 3, more=20, limit_s=120)
        with urllib.request.urlopen(f"http://{pods.address(names[0])}:9400/readyz", timeout=5) as answer:
            assert answer.status == 200

        grace_s = templates["Job/training"]["spec"]["terminationGracePeriodSeconds"]
        pods.stop(names[1], grace_s=grace_s)
        assert pods.container(names[1])["State"]["ExitCode"] == ExitCode.PREEMPTED
        steps_of(run, 2, more=10)
        engine("podman", "start", f"{names[1]}-node")
        steps_of(run, 3, more=10)

        engine("podman", "kill", "-s", "KILL", f"{names[0]}-node")
        steps_of(run, 2, more=10)
        for name in names[1:]:
            pods.stop(name, grace_s=grace_s)
            assert pods.container(name)["State"]["ExitCode"] == ExitCode.PREEMPTED
        # The job made anew has another UID: on the same volume it goes on.
        pods.play("kt-again-0", templates["Job/training"], index=0, environ={**environ, "JOB_UID": "kube-test-again"})
        steps_of(run, 1, more=10)
        pods.stop("kt-again-0", grace_s=grace_s)
        assert pods.container("kt-again-0")["State"]["ExitCode"] == ExitCode.PREEMPTED
    result = account(read_records(events), order=None)
    assert not result.problems, result.problems
    assert (result.used_twice, result.never_used) == (0, 0)
