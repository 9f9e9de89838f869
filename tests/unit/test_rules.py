"""The Prometheus rules: they speak of metrics that exist, and promtool, where it is installed, finds them right."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from elastic.metrics.definition import Kind
from elastic.metrics.definitions import DEFINITIONS

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
TESTS = sorted(RULES.glob("*.test.yaml"))
_PARTS = {Kind.COUNTER: ("",), Kind.GAUGE: ("",), Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}


def test_rules_speak_of_metrics_that_exist():
    exported = {each.name + part for each in DEFINITIONS for part in _PARTS[each.kind]}
    groups = yaml.safe_load((RULES / "rules.yaml").read_text())["groups"]
    asked = {name for group in groups for rule in group["rules"] for name in re.findall(r"\belastic_\w+", rule["expr"])}
    recorded = {rule["record"].split(":")[1] for group in groups for rule in group["rules"] if "record" in rule}
    assert asked - exported - recorded == set()
    assert "elastic_checkpoint_failures_total" in asked


def test_every_alert_has_a_severity_and_a_summary_and_pages_say_what_to_do():
    groups = yaml.safe_load((RULES / "rules.yaml").read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] != "page" or alert["annotations"]["action"]


def test_every_alert_is_seen_to_fire_and_not_to_fire():
    groups = yaml.safe_load((RULES / "rules.yaml").read_text())["groups"]
    tests = [test for file in TESTS for test in yaml.safe_load(file.read_text())["tests"]]
    tried = [each for test in tests for each in test.get("alert_rule_test", ())]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert {each["alertname"] for each in tried if each["exp_alerts"]} == alerts
    assert {each["alertname"] for each in tried if not each["exp_alerts"]} == alerts


@pytest.mark.parametrize(
    "command", [("check", "rules", "rules.yaml"), *(("test", "rules", file.name) for file in TESTS)]
)
def test_promtool_agrees(command):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    done = subprocess.run(["promtool", *command], cwd=RULES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
