"""The table of the README: ours and others' through the same audit, as `make bench-data` prints it."""

import json
from pathlib import Path

import pytest

from tests.bench.data_order import CHANGES, OURS, PLANTED, audit, main
from tests.bench.data_rivals import SYSTEMS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found():
    return {name: [audit(read(change), items=change.items) for change in CHANGES] for name, read in SYSTEMS.items()}


def test_ours_is_exact_at_every_change(found):
    assert [(each.used_twice, each.never_used) for each in found[OURS]] == [(0, 0)] * len(CHANGES)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != OURS])
def test_the_audit_denies_what_is_wrong(found, name):
    """A negative control: an audit that finds nothing anywhere would prove nothing for us."""
    wrong = [each for each in found[name] if each.used_twice or each.never_used]
    assert wrong
    assert not any(each.exact for each in wrong)
    if name == PLANTED:
        assert len(wrong) == len(CHANGES)


def test_the_pages_show_what_is_printed(capsys):
    main(items=100_000, rounds=1)
    printed = capsys.readouterr().out
    table = printed[: printed.index("\n\n")]
    for page in ("README.md", "tests/bench/RESULTS.md"):
        assert table in (ROOT / page).read_text(), page
    rows = json.loads(printed.splitlines()[-1])["rows"]
    assert all(row["met"] for row in rows if row["unit"] != "ms"), "no time is tested"
    assert len(rows) == 4 * len(CHANGES) + 2
