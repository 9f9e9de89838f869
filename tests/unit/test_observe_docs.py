"""docs/observe.md shows what the commands really print: each block is made anew from the same small run."""

import re
from pathlib import Path

import pytest

from elastic.cli.console import columns
from elastic.observe.screen import screen
from elastic.observe.status import StatusFold
from elastic.observe.words import head, is_routine, sentence
from tests.harness import story

PAGE = Path(__file__).parents[2] / "docs" / "observe.md"
NOW_S = 126.0


def status() -> str:
    fold = StatusFold()
    for each in story.with_a_kill():
        if each.time_s <= NOW_S:
            fold.apply(each)
    return columns(screen(fold.status(now_s=NOW_S, goal_samples=960)))


def happened() -> str:
    told = [each for each in story.with_a_kill() if 111 < each.time_s < 118 and not is_routine(each.event)]
    return "\n".join(f"{each.time_s:.1f}  {head(each)}  {sentence(each.event)}" for each in told)


BLOCKS = {"status": status, "events": happened}


def put(text: str, name: str, block: str) -> str:
    found = re.sub(rf"(<!-- {name} -->\n```text\n).*?```", lambda m: f"{m[1]}{block}\n```", text, flags=re.DOTALL)
    assert f"<!-- {name} -->" in found
    return found


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_shows_what_is_printed(name):
    text = PAGE.read_text()
    assert put(text, name, BLOCKS[name]()) == text, (
        "run `python -m tests.unit.test_observe_docs` and read the difference"
    )


def test_pictures_are_there_small_and_need_no_network():
    named = set(re.findall(r"!\[[^\]]+\]\(pictures/([^)]+)\)", PAGE.read_text()))
    found = {path.name: path for path in (PAGE.parent / "pictures").iterdir()}
    assert named == set(found)
    assert sum(path.stat().st_size for path in found.values()) < 300_000
    for path in found.values():
        if path.suffix == ".svg":
            links = re.findall(r"(?:href|src|url)\W+(https?://[^\"')]+)", path.read_text())
            assert not links, f"{path.name} asks {links}"


if __name__ == "__main__":
    for name, block in BLOCKS.items():
        PAGE.write_text(put(PAGE.read_text(), name, block()))
