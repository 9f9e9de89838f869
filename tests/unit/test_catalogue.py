"""The pages of cases name tests that are there."""

from pathlib import Path

import pytest

from tests.harness.catalogue import faults

ROOT = Path(__file__).parents[2]


PAGES = [ROOT / "docs" / name for name in ("cases-checkpoint.md", "cases-deploy.md", "security.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda each: each.name)
def test_every_case_names_tests_that_are_there(page):
    assert faults(page, root=ROOT) == []


def test_what_is_not_true_is_told(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_one(): ...\nclass TestB:\n    def test_two(self): ...\n")
    page = tmp_path / "cases.md"
    page.write_text(
        "| # | what | here |\n| --- | --- | --- |\n| 1 | a | `tests/test_a.py::test_one` |\n"
        "| 2 | b | `tests/test_a.py::TestB::test_two` `tests/test_a.py::test_three` |\n"
        "| 4 | c | none: no |\n| 5 | d | |\n"
    )
    assert faults(page, root=tmp_path) == [
        "cases.md: rows are not numbered 1 to 4",
        "cases.md row 2: there is no tests/test_a.py::test_three",
        "cases.md row 5: neither a test nor `none: ` and the reason",
    ]
