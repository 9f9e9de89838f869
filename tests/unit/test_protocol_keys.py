"""PROTOCOL.md lists exactly the keys that there are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from elastic.rendezvous.keys import Keys

PAGE = Path(__file__).parents[2] / "elastic" / "rendezvous" / "PROTOCOL.md"


def listed() -> set[str]:
    block = PAGE.read_text().partition("```text\n")[2].partition("\n\n")[0]
    names = re.findall(r"^ *(?:/elastic/jobs/<id>)?/(\w+)", block, re.MULTILINE)
    assert len(names) == len(set(names)), "a key is listed twice"
    return set(names)


def used() -> set[str]:
    """The first name below the job's prefix, of whatever Keys can name."""
    keys = Keys.of(prefix="/p", job_id="j")
    found = set()
    for name, member in vars(Keys).items():
        if name.startswith("_") or name == "of":
            continue
        if isinstance(member, property):
            found.add(getattr(keys, name))
        elif inspect.isfunction(member):
            found.add(member(keys, 1 if name == "part" else "x"))
    assert all(key.startswith("/p/j/") for key in found)
    return {key.split("/")[3] for key in found}


def test_the_protocol_s_page_lists_the_keys_that_there_are():
    assert listed() == used()
    assert len(used()) >= 12
