"""The command line: what it prints, its exit codes, and that it never shows a traceback."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.cli import build_parser, main
from elastic.cli.console import columns
from elastic.config.schema import FIELDS, OPTIONS
from elastic.errors import ExitCode

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(capsys):
    def call(*argv: str) -> tuple[int, str, str]:
        code = main(argv)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture(autouse=True)
def _no_settings_of_the_surroundings(monkeypatch):
    monkeypatch.delenv("ELASTIC_CONFIG", raising=False)


def test_show_prints_every_setting_with_its_origin(run, monkeypatch, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("training:\n  seed: 5\n")
    monkeypatch.setenv("ELASTIC__DATA__ORDER", "sequential")
    code, out, err = run("config", "show", "--config", str(file), "--steps", "7", "job.options.lr=0.5")
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines()}
    assert lines["training.seed"] == ["5", f"{file}:2"]
    assert lines["training.steps"] == ["7", "--steps"]
    assert lines["data.order"] == ['"sequential"', "env ELASTIC__DATA__ORDER"]
    assert lines["job.options.lr"] == ["0.5", "job.options.lr="]
    assert lines["model.layers"] == ["4", "default"]
    assert list(lines) == [key if key != OPTIONS else "job.options.lr" for key in FIELDS]


def test_show_as_json(run):
    code, out, _ = run("config", "show", "--json", "--training.steps", "7")
    found = json.loads(out)
    assert (code, found["settings"]["training"]["steps"]) == (0, 7)
    assert found["origins"]["training.steps"] == "--training.steps"


def test_check(run, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("training:\n  steps: 5\n")
    assert run("config", "check", str(file)) == (0, f"{file}: no problems, 1 setting\n", "")
    file.write_text("training:\n  stepz: 5\n  seed: x\n")
    code, out, err = run("config", "check", str(file))
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.splitlines() == [
        f"elastic: {file}:2: unknown setting 'training.stepz'. Did you mean 'steps'?",
        f"{file}:3: training.seed needs a whole number, found 'x'",
    ]


def test_check_ignores_the_environment(run, monkeypatch, tmp_path):
    monkeypatch.setenv("ELASTIC__TRAINING__STEPS", "wrong")
    file = tmp_path / "run.yaml"
    file.write_text("")
    assert run("config", "check", str(file))[0] == 0


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["config"],
        ["config", "check"],
        ["config", "check", ""],
        ["config", "check", "/nowhere.yaml"],
        ["config", "check", "a", "b"],
        ["config", "show", "--stepz", "4"],
        ["config", "schema", "more"],
        ["docs", "nonsense"],
        ["docs", "metrics", "more"],
    ],
)
def test_wrong_usage_is_exit_code_64_and_a_message(run, argv):
    code, out, err = run(*argv)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith("elastic: ")


def test_every_command_has_help(capsys):
    for argv in (["--help"], ["config", "--help"], ["config", "show", "--help"], ["docs", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as left:
            build_parser().parse_args(argv)
        assert left.value.code == 0
        assert capsys.readouterr().out


CHANGE_OR_MAKE = {
    *("drain", "scale", "pause", "resume", "demo", "docs", "report"),
    *("config check", "config schema", "targets"),  # these print JSON only, or nothing but problems
}


def test_every_command_that_shows_something_shows_it_as_json_too():
    def commands(parser, name=()):
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not below:
            yield " ".join(name), parser
        for action in below:
            for word, one in action.choices.items():
                yield from commands(one, (*name, word))

    found = dict(commands(build_parser()))
    assert {name for name, parser in found.items() if "--json" not in parser.format_help()} == CHANGE_OR_MAKE
    assert {"status", "events", "logs", "top", "doctor", "audit", "config show"} <= set(found)


@pytest.mark.parametrize("table", ["config", "metrics"])
def test_the_documentation_has_the_tables_as_they_are(run, table):
    page = {"config": "configuration.md", "metrics": "metrics.md"}[table]
    code, out, _ = run("docs", table)
    assert code == 0
    text = (ROOT / "docs" / page).read_text()
    assert out in text, f"docs/{page} is out of date: put in the output of `elastic docs {table}`"


def test_columns_align():
    assert columns([("a", "bb", "c"), ("aaa", "b", "")]) == "a    bb  c\naaa  b"
    assert columns([]) == ""
    long = "x" * 300
    assert columns([("a", long, "c"), ("b", "short", "d")]) == f"a  {long}  c\nb  short  d"


def test_a_reader_that_has_left_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)  # So that the first write breaks the pipe for certain.
    command = [sys.executable, "-m", "elastic", "config", "show"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_disk_or_store_that_is_away_is_a_message(run, monkeypatch):
    def away(root, **others):
        raise OSError(5, "Could not connect to the endpoint", root)

    monkeypatch.setattr("elastic.checkpoint.inspection.survey", away)
    code, out, err = run("ckpt", "ls", "output/gone")
    assert (code, out) == (70, "")
    assert "Could not connect to the endpoint" in err
    assert "output/gone" in err
