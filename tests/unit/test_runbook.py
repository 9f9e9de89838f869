"""The runbook has a page for every alert and every exit code, and names only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from elastic.cli import build_parser
from elastic.config.reference import settings_table
from elastic.errors import ExitCode
from elastic.events import kinds

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runbook.md").read_text()
SECTIONS = dict(re.findall(r"^### ([^\n]+)\n\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
INTERNAL = {ExitCode.PEER_LOST, ExitCode.REGROUP}


def test_every_alert_has_its_section_and_no_other_has():
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert alerts == {title for title in SECTIONS if not title.startswith("Exit ")}


def test_every_exit_code_has_its_section_and_no_other_has():
    documented = {int(title.removeprefix("Exit ")) for title in SECTIONS if title.startswith("Exit ")}
    assert documented == {int(code) for code in ExitCode if code not in INTERNAL}


@pytest.mark.parametrize("title", SECTIONS)
def test_each_section_says_what_it_means_where_to_look_and_what_to_do(title):
    assert re.findall(r"^- \*\*(\w+)\*\*: ", SECTIONS[title], re.MULTILINE) == ["Means", "Look", "Do"]


def test_what_is_named_exists():
    events = {each.kind for each in vars(kinds).values() if isinstance(each, type) and getattr(each, "kind", "")}
    settings = set(re.findall(r"`(\w+\.\w+)`", settings_table()))
    metrics = (ROOT / "docs" / "metrics.md").read_text()
    parser = build_parser()
    for command in set(re.findall(r"`elastic\s([a-z]+)", PAGE)):
        with pytest.raises(SystemExit):
            parser.parse_args([command, "--help"])
    for word in set(re.findall(r"`([a-z_]+_[a-z_]+)`", PAGE)):
        assert word in events or word in metrics or any(name.endswith(f".{word}") for name in settings), word
    for name in set(re.findall(r"`(\w+\.\w+)(?:: \w+)?`", PAGE)):
        assert name in settings, name
