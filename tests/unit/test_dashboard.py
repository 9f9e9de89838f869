"""The Grafana dashboard asks for metrics that there are, each put together over agents as it must be."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from elastic.metrics.definition import Kind, Over
from elastic.metrics.definitions import DEFINITIONS

FILE = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboard.json"
BOARD = json.loads(FILE.read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [
    *((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]),
    *((each["name"], each["expr"]) for each in BOARD["annotations"]["list"]),
]
BY_NAME = {definition.name: definition for definition in DEFINITIONS}
OF_ALL_TIME = ("Goodput since the run began", "elastic_time_seconds_total")
"""A share of a counter that outlives its agents, and not of what it grew by."""
PARTS = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}


def definition_of(series):
    for definition in DEFINITIONS:
        if series in [definition.name + part for part in PARTS.get(definition.kind, ("",))]:
            return definition
    return None


def series_of(expression):
    """(the nearest aggregation before it, name, selector) of each series."""
    for found in re.finditer(r"\b(elastic_\w+)(\{[^}]*\})?", expression):
        before = re.findall(r"\b(sum|max|min|count|avg)\b(?= by)", expression[: found.start()])
        yield (before[-1] if before else None), found[1], found[2] or ""


def test_there_is_something_to_check():
    assert len(PANELS) > 20
    assert len(EXPRESSIONS) > len(PANELS)
    assert [
        definition_of(name) for name in ("elastic_nonsense", "elastic_step_total", "elastic_recovery_duration_seconds")
    ] == [None] * 3


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_only_metrics_that_there_are_with_labels_that_they_have(title, expression):
    found = list(series_of(expression))
    assert found
    for _, name, selector in found:
        definition = definition_of(name)
        assert definition is not None, f"{title}: there is no {name}"
        labels = set(re.findall(r"(\w+)=", selector))
        assert "job" in labels, f"{title}: {name} of all jobs at once"
        assert labels <= {*definition.label_names, "job"}, title
        for label, value in re.findall(r'(\w+)="([^"$]*)"', selector):
            assert value in dict(definition.labels)[label], f"{title}: no {label} is {value}"
    groups = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in group.split(",")}
    known = {label for _, name, _ in found for label in definition_of(name).label_names}
    each = {"instance"} if all(definition_of(name).over is Over.EACH for _, name, _ in found) else set()
    assert groups <= {*known, *each, "job", "le"}, title


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_the_values_of_several_agents_are_put_together_as_documented(title, expression):
    for aggregation, name, _ in series_of(expression):
        definition = definition_of(name)
        if definition.over is not Over.EACH:
            assert aggregation == definition.over, f"{title}: {name} is to be put together by {definition.over}"


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_counters_are_rates_and_gauges_are_not(title, expression):
    for _, name, selector in series_of(expression):
        if (title, name) == OF_ALL_TIME:
            continue
        rated = re.search(rf"\b(rate|increase)\({re.escape(name + selector)}\[", expression) is not None
        assert rated == (definition_of(name).kind is not Kind.GAUGE), f"{title}: {name}"


def test_legends_name_labels_that_the_expression_keeps():
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), panel["title"]


def test_panels_lie_beside_each_other():
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = {}
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies over {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_grafanas_own_models_know_every_field():
    """What Grafana's published schema has no place for is lost when its models read the file and write it again."""
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(BOARD)))
    assert set(lost(BOARD, read)) == {"annotations.list.0.step", "annotations.list.0.titleFormat"}, (
        "an annotation's fields are its data source's"
    )
    assert "panels.1.gridPos.z" in set(lost(with_a_mistake(), read))


def with_a_mistake():
    board = json.loads(FILE.read_text())
    board["panels"][1]["gridPos"]["z"] = 1
    return board


def lost(ours, theirs, *, place=""):
    """Where the two differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            yield from lost(value, theirs.get(name, object()), place=f"{place}.{name}" if place else name)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from lost(one, other, place=f"{place}.{at}")
    elif ours != theirs:
        yield place


@pytest.mark.parametrize(
    ("kind", "metrics"),
    [
        ("stat", {"elastic_time_seconds_total"}),
        ("timeseries", {"elastic_world_size"}),
        ("timeseries", {"elastic_step"}),
        ("timeseries", {"elastic_loss"}),
        ("timeseries", {"elastic_time_seconds_total"}),
        ("timeseries", {"elastic_recovery_stage_duration_seconds_sum"}),
        ("timeseries", {"elastic_checkpoint_last_success_timestamp_seconds", "elastic_checkpoint_interval_seconds"}),
        ("timeseries", {"elastic_failures_total"}),
        ("stat", {"elastic_restart_budget_remaining"}),
        ("heatmap", {"elastic_rank_step_duration_seconds"}),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(sorted(value)),
)
def test_what_a_person_looks_for_first_has_its_panel(kind, metrics):
    shown = [
        {name for target in panel["targets"] for _, name, _ in series_of(target["expr"])}
        for panel in PANELS
        if panel["type"] == kind
    ]
    assert any(metrics <= each for each in shown)


def test_every_new_generation_is_a_mark_in_all_panels():
    (mark,) = BOARD["annotations"]["list"]
    assert (mark["enable"], [name for _, name, _ in series_of(mark["expr"])]) == (True, ["elastic_generation"])


def test_every_data_source_is_the_chosen_one():
    assert set(re.findall(r'"uid": "([^"]*)"', FILE.read_text())) == {"elastic-training", "${datasource}"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_reads_every_expression(tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m").replace("$job", "j")}
        for number, (_, expression) in enumerate(EXPRESSIONS)
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
