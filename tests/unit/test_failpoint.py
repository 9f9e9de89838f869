"""Failpoints: armed by the environment only, and each fires where it says."""

import subprocess
import sys

import pytest

from elastic.errors import UsageError
from elastic.failpoint import Action, armed, parse

PROGRAM = (
    "from elastic.failpoint import failpoint\nfor n in range(5):\n    print(n, flush=True)\n    failpoint('here')\n"
)


def test_unarmed_without_the_variable():
    assert armed({}) is None


@pytest.mark.parametrize("text", ["here", "here=", "here=explode", "here=kill@x"])
def test_nonsense_is_refused(text):
    with pytest.raises(UsageError, match="ELASTIC_FAILPOINT"):
        parse(text)


def test_counts_its_own_passes_only():
    point = parse("here=stop@2")
    assert [point.passed(name) for name in ("there", "here", "there", "here", "here")] == [
        *(False, False, False),
        *(True, False),
    ]
    assert point.action is Action.STOP


@pytest.mark.parametrize(
    ("armed_with", "code", "printed"), [("here=exit@3", 1, 3), ("here=kill", -9, 1), ("x=exit", 0, 5)]
)
def test_fires(armed_with, code, printed):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        env={"ELASTIC_FAILPOINT": armed_with},
        timeout=30,
        check=False,
    )
    assert done.returncode == code
    assert len(done.stdout.split()) == printed
