"""The rendezvous protocol, scenario by scenario: tests/testdata/rendezvous/*.txt."""

import pytest

from tests.harness.transcripts import DIRECTORY, rewrite

PATHS = sorted(DIRECTORY.glob("*.txt"))


def test_there_are_transcripts():
    assert len(PATHS) >= 12


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_transcript(path):
    """To accept a change: python -m tests.harness.transcripts --rewrite, then read the difference."""
    assert rewrite(path.read_text()) == path.read_text()
