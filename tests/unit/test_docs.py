"""The documentation is true: its code is the code that is tested, its links lead somewhere, its commands exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from elastic.cli import build_parser
from elastic.errors import ExitCode

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "elastic").rglob("*.md")])
README = (ROOT / "README.md").read_text()


def test_code_blocks_are_the_files_that_they_show():
    blocks = re.findall(r"<!-- (file|part of): (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    assert [name for _, name, _ in blocks] == ["jobs/sentiment.py", "jobs/own_loop.py"]
    for kind, name, block in blocks:
        text = (ROOT / name).read_text()
        assert block == text if kind == "file" else block in text, f"README shows another {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_tests_that_are_named_exist():
    found = {path.stem: _tests_of(path) for path in (ROOT / "tests").rglob("test_*.py")}
    pages = {page.name: re.findall(r"`(test_\w+)::(test_\w+)`", page.read_text()) for page in PAGES}
    assert pages["cases.md"]
    assert pages["PROTOCOL.md"]
    for page, named in pages.items():
        for file, test in named:
            assert test in found.get(file, ()), f"{page} names {file}::{test}, which is not there"


def test_every_report_and_every_guarantee_names_what_shows_it():
    for page, heading in (("docs/cases.md", "| reported |"), ("elastic/rendezvous/PROTOCOL.md", "| guarantee |")):
        table = (ROOT / page).read_text().partition(heading)[2].partition("\n\n")[0]
        rows = table.splitlines()[2:]
        assert len(rows) > 15, f"{page} has lost its rows"
        for row in rows:
            shown_by = row.rstrip("| ").rpartition(" | ")[2]
            assert re.search(r"`test_\w+::test_\w+`|testdata/rendezvous/\w+\.txt", shown_by), row


def _tests_of(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`make ([a-z-]+)", text)) | set(re.findall(r"^make ([a-z-]+)$", text, re.MULTILINE))
    assert named, "the pages name no make target any more"
    assert named <= targets


def test_the_two_commands_come_first():
    assert re.search(r"```\n(.*?)```", README, re.DOTALL).group(1) == "make demo\nmake test\n"


def test_commands_exist():
    parser = build_parser()
    for command in set(re.findall(r"`elastic ([a-z]+)", README)):
        with pytest.raises(SystemExit):
            parser.parse_args([command, "--help"])


def test_exit_codes_are_the_documented_ones():
    table = README[README.index("## Exit codes") :]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    internal = {ExitCode.PEER_LOST, ExitCode.REGROUP}
    assert documented == {int(code) for code in ExitCode if code not in internal}
