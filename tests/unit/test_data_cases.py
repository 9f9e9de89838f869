"""The page of data's cases names tests that are there."""

from pathlib import Path

from tests.harness.catalogue import faults

ROOT = Path(__file__).parents[2]


def test_every_case_names_tests_that_are_there():
    assert faults(ROOT / "docs" / "cases-data.md", root=ROOT) == []
