"""Every order of events of a small world: two worlds never share a generation, nothing old is accepted, all are placed.

Three agents, up to ten steps, at most two faults (an agent dies, a lease ends, workers lose a peer or fail, one is done
before the others, a cut between agents, a world or a commit whose answer is lost and that arrives later, a wiped
store). Watches lag, leaders and commits pause anywhere.
"""

from __future__ import annotations

import pytest

from elastic.rendezvous.view import Limits
from elastic.rendezvous.wish import NO_WISH, paused, scaled
from tests.harness.mutants import MUTANTS
from tests.harness.search import at_work, beginning, forgotten, given, losing, search
from tests.harness.search_steps import FAULTS
from tests.harness.search_writes import Rules

STARTS = [pytest.param(beginning, id="first_start"), pytest.param(lambda: at_work(Rules()), id="at_work")]
STARTS += [
    pytest.param(lambda: given(Rules()), id="given"),
    pytest.param(lambda: forgotten(Rules()), id="forgotten"),
    pytest.param(lambda: losing(Rules()), id="losing"),
]
NOBODY_ASKED = Rules(limits=Limits(min_nodes=1, max_nodes=3, first_wait_s=1.0, ask_all_up_to=0))
WISHES = (
    NO_WISH,
    paused(NO_WISH, reason=""),
    scaled(NO_WISH, min_nodes=1, max_nodes=2, reason=""),
    scaled(NO_WISH, min_nodes=3, max_nodes=3, reason=""),
)
WISHED = Rules(wishes=WISHES)
STEPS = {"see", "enter", "end", "register", "prepare", "commit", "stand", "read", "members", "decide", "write", "time"}


def check(found, *, at_least):
    assert not found.violation, f"{found.violation} after {' · '.join(found.path)}"
    assert found.states >= at_least
    assert found.settled > 0
    return found.fired


@pytest.mark.parametrize("start", STARTS)
def test_slice(start):
    fired = check(
        search(start(), rules=Rules(), depth=10, most_faults=2, most_states=5000, settle_each=25), at_least=5000
    )
    assert {"crash", "lose-lease"} <= set(fired)


def test_slice_with_wishes():
    """A person makes the job smaller or larger, pauses it, and takes that back."""
    found = search(at_work(WISHED), rules=WISHED, depth=10, most_faults=2, most_states=2000, settle_each=10)
    assert {"ask-pause", "ask-scale", "wish"} <= set(check(found, at_least=2000))


@pytest.mark.exhaustive
def test_all_wishes_of_a_generation_at_work():
    found = search(at_work(WISHED), rules=WISHED, depth=10, most_faults=2, most_states=200_000, settle_each=50)
    fired = check(found, at_least=200_000)
    assert {"ask-pause", "ask-scale", "ask-resume", "wish", "end", "crash", "break"} <= set(fired)


@pytest.mark.exhaustive
def test_all_of_the_first_start():
    found = search(beginning(), rules=Rules(), depth=10, most_faults=2, settle_each=100)
    assert found.depth == 10
    fired = check(found, at_least=100_000)
    assert {*FAULTS, *STEPS, "land", "land-commit", "expire", "miss"} <= set(fired), "every fault and step was taken"


@pytest.mark.exhaustive
def test_all_of_a_generation_at_work():
    found = search(at_work(Rules()), rules=Rules(), depth=10, most_faults=2, most_states=200_000, settle_each=100)
    fired = check(found, at_least=200_000)
    assert {*FAULTS, *STEPS, "expire", "find", "restore"} - {"enter", "delay"} <= set(fired)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rules", [Rules(), NOBODY_ASKED], ids=["few", "many"])
def test_all_of_a_world_that_is_formed_directly(rules):
    """Of many, members are not asked before it is: some of them may be dead too."""
    found = search(losing(rules), rules=rules, depth=10, most_faults=3, most_states=200_000, settle_each=100)
    fired = check(found, at_least=100_000)
    assert {*FAULTS, *STEPS, "expire", "miss", "decline", "finish"} <= set(fired)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(mutant, id=mutant.name, marks=pytest.mark.exhaustive if mutant.long else ()) for mutant in MUTANTS],
)
def test_nothing_can_be_taken_out(mutant, monkeypatch):
    start = mutant.start(Rules())
    for module, name, instead in mutant.patches:
        assert hasattr(module, name)
        monkeypatch.setattr(module, name, instead)
    found = search(start, rules=mutant.rules, depth=10, most_faults=2, most_states=400_000, settle_each=10)
    assert mutant.breaks in found.violation, f"{found.states} states, found {found.violation!r}"
