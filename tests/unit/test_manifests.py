"""The manifests for Kubernetes: right by every schema, and right by the rules that no schema knows."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import yaml

from elastic.errors import ExitCode
from tests.harness import manifests
from tests.harness.manifests import KUBERNETES, NEWEST, OLDEST, OVERLAYS, named, pod_templates, render

RESOURCES = KUBERNETES / "monitoring" / "resources.py"
MARGIN_S = 15
"""Between the end of torchrun's patience and the kubelet's."""


def job() -> manifests.Resource:
    return next(each for each in render("plain") if each["kind"] == "Job")


def node() -> manifests.Resource:
    return job()["spec"]["template"]["spec"]["containers"][0]


SLOW = ("cert-manager.io", "monitoring.coreos.com")
"""Groups whose models take seconds to load."""


def is_slow(resource: manifests.Resource) -> bool:
    return resource["apiVersion"].startswith(SLOW)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_resource_is_right_in_the_oldest_and_the_newest_version(version):
    seen: list[manifests.Resource] = []
    faults = []
    for overlay in OVERLAYS:
        for resource in render(overlay):
            if resource not in seen and not is_slow(resource):
                faults += manifests.schema_faults(resource, version=version)
                seen.append(resource)
    assert faults == []
    assert len({each["kind"] for each in seen}) >= 12


@pytest.mark.exhaustive
def test_certificates_monitors_and_rules_are_right_by_their_models():
    done = subprocess.run([sys.executable, str(RESOURCES)], capture_output=True, text=True, check=True)
    (rule, _) = yaml.safe_load_all(done.stdout)
    slow = [each for each in render("plain") if is_slow(each)] + [rule]
    assert {each["kind"] for each in slow} == {"Certificate", "Issuer", "PodMonitor", "PrometheusRule"}
    for resource in slow:
        assert manifests.custom_faults(resource) == []
        wrong = copy.deepcopy(resource)
        wrong["spec"]["intervall"] = "1s"
        assert manifests.custom_faults(wrong) == [f"{named(wrong)}: .spec.intervall is unknown"]


def test_a_misspelt_key_is_found_in_every_kind():
    kinds = {}
    for overlay in OVERLAYS:
        kinds |= {each["kind"]: each for each in render(overlay) if each.get("spec") and not is_slow(each)}
    assert {"Job", "StatefulSet", "JobSet", "TrainJob", "TrainingRuntime", "PyTorchJob"} <= kinds.keys()
    for kind, resource in kinds.items():
        wrong = copy.deepcopy(resource)
        wrong["spec"]["backofLimit"] = 1
        assert manifests.schema_faults(wrong, version=NEWEST), kind


def test_a_misspelt_key_deep_inside_of_a_custom_resource_is_found():
    for overlay, kind in (("jobset-kueue", "JobSet"), ("trainer", "TrainingRuntime"), ("pytorchjob", "PyTorchJob")):
        resource = copy.deepcopy(next(each for each in render(overlay) if each["kind"] == kind))
        (_, template), *_ = pod_templates((resource,))
        template["spec"]["containers"][0]["livenessProbe"]["failureTreshold"] = 1
        assert any("failureTreshold is unknown" in fault for fault in manifests.custom_faults(resource)), kind


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_have_no_more_rights_than_they_need(overlay):
    found = list(pod_templates(render(overlay)))
    assert found
    for owner, template in found:
        pod = template["spec"]
        security = pod["securityContext"]
        assert security["runAsNonRoot"], owner
        assert security["runAsUser"] >= 10000, owner
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        assert pod["automountServiceAccountToken"] is False, owner
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, owner
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, owner
            assert container["resources"]["limits"].keys() == {"memory"}, "a limit of cpu slows a whole world down"
            assert ":" in container["image"], f"{owner}: which version of {container['image']}?"
            assert not container["image"].endswith(":latest")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_grace_period_is_longer_than_torchrun_waits_for_the_last_save(overlay):
    templates = [each for owner, each in pod_templates(render(overlay)) if "etcd" not in owner]
    assert templates
    for template in templates:
        arguments = template["spec"]["containers"][0]["args"]
        timeout_s = next(int(each.partition("=")[2]) for each in arguments if each.startswith("--shutdown-timeout="))
        assert template["spec"]["terminationGracePeriodSeconds"] >= timeout_s + MARGIN_S


def test_exit_codes_decide_what_a_failed_pod_counts():
    """Each code that an agent may end with is either forgiven, final, or one of a bounded number of failures."""
    spec = job()["spec"]
    rules = spec["podFailurePolicy"]["rules"]
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    by_action = {rule["action"]: set(rule["onExitCodes"]["values"]) for rule in rules[1:]}
    assert by_action == {
        "Ignore": {ExitCode.PREEMPTED, ExitCode.FENCED},
        "FailIndex": {ExitCode.USAGE, ExitCode.NO_PROGRESS},
    }
    counted = set(ExitCode) - set.union(*by_action.values()) - {ExitCode.DONE, ExitCode.PEER_LOST, ExitCode.REGROUP}
    assert counted == {ExitCode.FAILED, ExitCode.INTERNAL}
    assert spec["backoffLimitPerIndex"] > 0
    names = {rule["onExitCodes"]["containerName"] for rule in rules[1:]}
    assert names == {node()["name"]}
    assert spec["podReplacementPolicy"] == "Failed", "two pods of an index would work at once"


def test_the_job_can_be_scaled_while_it_runs():
    spec = job()["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"], "only together can they be changed"
    least, most = next(each for each in node()["args"] if each.startswith("--nnodes=")).partition("=")[2].split(":")
    assert int(least) <= spec["parallelism"] < int(most)
    assert spec["successPolicy"]["rules"] == [{"succeededCount": 1}]


def test_the_job_is_known_to_etcd_by_an_identity_of_its_own():
    arguments = node()["args"]
    variables = {each["name"]: each for each in node()["env"]}
    assert "--rdzv-id=$(JOB_UID)" in arguments
    path = variables["JOB_UID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['batch.kubernetes.io/controller-uid']"
    order = [each["name"] for each in node()["env"]]
    assert order.index("INDEX") < order.index("ELASTIC_NODE"), "a variable can use those above it only"


ID_LABEL = {
    "plain": "batch.kubernetes.io/controller-uid",
    "development": "batch.kubernetes.io/controller-uid",
    "jobset-kueue": "jobset.sigs.k8s.io/jobset-uid",  # jobs of a set are made anew when it restarts
    "trainer": "jobset.sigs.k8s.io/jobset-uid",
    "pytorchjob": "training.kubeflow.org/job-name",
}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_names_the_launch_by_what_its_pods_have_in_common(overlay):
    (template,) = (each for owner, each in pod_templates(render(overlay)) if "etcd" not in owner)
    container = template["spec"]["containers"][0]
    assert "--rdzv-id=$(JOB_UID)" in container["args"]
    (source,) = (each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"] if each["name"] == "JOB_UID")
    assert source == f"metadata.labels['{ID_LABEL[overlay]}']"


def test_pods_are_spread_over_machines_and_etcd_keeps_its_majority():
    resources = {named(each): each for each in render("plain")}
    (spread,) = resources["Job/training"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["labelSelector"]["matchLabels"] == resources["Job/training"]["spec"]["template"]["metadata"]["labels"]
    etcd = resources["StatefulSet/etcd"]["spec"]
    assert (etcd["replicas"], etcd["podManagementPolicy"]) == (3, "Parallel"), "one after the other never gets ready"
    assert etcd["template"]["spec"]["affinity"]["podAntiAffinity"]
    budget = resources["PodDisruptionBudget/etcd"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"] == etcd["template"]["metadata"]["labels"]
    assert resources["PersistentVolumeClaim/checkpoint"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_no_probe_ends_what_is_healthy():
    for overlay in OVERLAYS:
        for owner, template in pod_templates(render(overlay)):
            for container in template["spec"]["containers"]:
                liveness = container.get("livenessProbe")
                if "etcd" in owner:
                    assert liveness is None, f"{owner}: a member that waits for the others would be killed"
                    continue
                assert liveness["httpGet"]["path"] == "/livez", "readiness ends while others are awaited"
                assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
                assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_pods_find_each_other_before_they_are_ready():
    services = {each["metadata"]["name"]: each["spec"] for each in render("plain") if each["kind"] == "Service"}
    for name in ("training", "etcd"):
        assert services[name]["clusterIP"] == "None"
        assert services[name]["publishNotReadyAddresses"] is True


def test_every_pod_is_behind_a_network_policy_and_etcd_speaks_tls_only():
    resources = render("plain")
    chosen = [each["spec"]["podSelector"]["matchLabels"] for each in resources if each["kind"] == "NetworkPolicy"]
    for owner, template in pod_templates(resources):
        assert template["metadata"]["labels"] in chosen, owner
    etcd = next(each for each in resources if each["kind"] == "StatefulSet")
    command = etcd["spec"]["template"]["spec"]["containers"][0]["command"]
    urls = [each for each in command if "urls=" in each and "metrics" not in each]
    assert urls
    assert all("http://" not in each for each in urls)
    assert {"--client-cert-auth", "--peer-client-cert-auth"} <= set(command)
    assert (
        "--rdzv-conf=protocol=https,cacert=/certificates/ca.crt,cert=/certificates/tls.crt,key=/certificates/tls.key"
        in node()["args"]
    )


def test_every_mount_has_its_volume_and_memory_counts():
    for overlay in OVERLAYS:
        for owner, template in pod_templates(render(overlay)):
            pod = template["spec"]
            claims = {"data"} if "StatefulSet" in owner else set()
            volumes = {each["name"] for each in pod["volumes"]} | claims
            for container in pod["containers"]:
                assert {each["name"] for each in container["volumeMounts"]} <= volumes, owner
            shm = [each for each in pod["volumes"] if each["name"] == "shm"]
            assert all(each["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"} for each in shm)


def test_pods_that_have_ended_are_no_targets():
    monitor = next(each for each in render("plain") if each["kind"] == "PodMonitor")
    endpoint = monitor["spec"]["podMetricsEndpoints"][0]
    assert endpoint["filterRunning"] is True
    assert endpoint["relabelings"][0]["regex"] == "(Succeeded|Failed)"
    assert endpoint["port"] in {port["name"] for port in node()["ports"]}


def test_alerts_and_dashboard_become_resources():
    done = subprocess.run(
        [sys.executable, str(RESOURCES)],
        capture_output=True,
        text=True,
        check=True,
    )
    rule, dashboard = yaml.safe_load_all(done.stdout)
    assert rule["spec"] == yaml.safe_load((manifests.ROOT / "deploy" / "prometheus" / "rules.yaml").read_text())
    assert manifests.schema_faults(dashboard, version=NEWEST) == []
    assert dashboard["metadata"]["labels"] == {"grafana_dashboard": "1"}


def test_certificates_made_by_openssl_are_the_ones_that_the_pods_want(tmp_path):
    done = subprocess.run([str(KUBERNETES / "certificates" / "make.sh")], capture_output=True, text=True, check=True)
    secrets = {each["metadata"]["name"]: each for each in yaml.safe_load_all(done.stdout)}
    assert all(manifests.schema_faults(each, version=NEWEST) == [] for each in secrets.values())
    wanted = {
        volume["secret"]["secretName"]
        for _, template in pod_templates(render("plain"))
        for volume in template["spec"]["volumes"]
        if "secret" in volume
    }
    by_manager = {each["spec"]["secretName"] for each in render("plain") if each["kind"] == "Certificate"}
    assert wanted == secrets.keys()
    assert wanted <= by_manager
    assert named(secrets["etcd-server"]) == "Secret/etcd-server"
