"""What to restore and what to keep, as pure decisions, against naive second implementations."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint.layout import CommitRecord
from elastic.checkpoint.policy import Found, candidates, retention, save_due

quick = settings(deadline=None, max_examples=150)


def found(iteration, **others):
    values = {
        "place": f"iteration_{iteration:08d}",
        "iteration": iteration,
        "lineage": "ours",
        "generation": 1,
        "consumed_samples": iteration * 8,
        # A digest covers the lineage too, so the same one in two lineages cannot be.
        "manifest_digest": f"d{iteration}" if others.get("lineage", "ours") == "ours" else f"e{iteration}",
        "ancestors": tuple(f"d{each}" for each in range(iteration)),
    }
    return Found(**(values | others))


def record(iteration, **others):
    values = {
        "iteration": iteration,
        "lineage": "ours",
        "manifest_digest": f"d{iteration}",
        "generation": 1,
        "consumed_samples": iteration * 8,
    }
    return CommitRecord(**(values | others))


def order(choice):
    return [each.found.iteration for each in choice.candidates]


def test_the_committed_one_then_older_ones():
    choice = candidates(record(20), tracker=30, found=[found(10), found(20), found(30), found(15, problem="torn")])
    assert order(choice) == [20, 10]
    reasons = {each.found.iteration: each.reason for each in choice.passed}
    assert "never committed" in reasons[30]
    assert reasons[15] == "torn"


def test_the_same_number_with_another_manifest_is_not_the_committed_one():
    choice = candidates(record(20), tracker=20, found=[found(10), found(20, manifest_digest="other")])
    assert order(choice) == [10]
    assert "not the one that was committed" in choice.passed[0].reason


def test_an_older_one_that_did_not_lead_to_the_committed_one():
    committed, stray = found(20, ancestors=("d5",)), found(10, generation=1)
    choice = candidates(record(20), tracker=10, found=[found(5), stray, committed])
    assert order(choice) == [20, 5]
    assert "never committed" in choice.passed[0].reason
    # Without the committed manifest nobody can tell: an older one is better than none.
    assert order(candidates(record(20), tracker=10, found=[found(5), stray])) == [10, 5]


def test_one_set_aside_counts_only_if_it_is_the_committed_one():
    aside = [found(20, aside=True, place=".aside-a"), found(10, aside=True, place=".aside-b")]
    assert [each.found.place for each in candidates(record(20), tracker=None, found=aside).candidates] == [".aside-a"]
    assert not candidates(None, tracker=20, found=aside).candidates


def test_without_a_record_the_tracker_then_the_newest():
    all_found = [found(10), found(20), found(30)]
    assert order(candidates(None, tracker=20, found=all_found)) == [20, 30, 10]
    assert order(candidates(None, tracker=None, found=all_found)) == [30, 20, 10]
    assert order(candidates(None, tracker=99, found=all_found)) == [30, 20, 10]
    assert order(candidates(None, tracker=20, found=[found(10), found(20, problem="torn")])) == [10]


def test_another_lineage_is_no_candidate():
    mixed = [found(10), found(500, lineage="theirs", generation=9)]
    assert order(candidates(None, tracker=500, found=mixed, lineage="ours")) == [10]
    assert order(candidates(None, tracker=None, found=mixed)) == [500]
    assert order(candidates(record(10), tracker=500, found=mixed)) == [10]


def test_what_led_nowhere_takes_no_place():
    stray, committed = found(15), found(20, ancestors=("d5", "d10"))
    chosen = retention([found(5), found(10), stray, committed], save_max=2, committed=20, lineage="ours")
    assert [each.iteration for each in chosen.delete] == [5]
    later = found(30, ancestors=("d5", "d10", "d20"))
    chosen = retention([found(10), stray, committed, later], save_max=2, committed=30, lineage="ours")
    assert [each.iteration for each in chosen.delete] == [10, 15]


iterations = st.lists(
    st.builds(
        found,
        st.integers(1, 30),
        lineage=st.sampled_from(["ours", "ours", "theirs", None]),
        problem=st.sampled_from([None, None, "torn"]),
    ),
    unique_by=lambda each: each.iteration,
    max_size=12,
)


@quick
@given(iterations, st.integers(1, 5), st.data())
def test_retention_agrees_with_a_naive_one(seen, save_max, data):
    whole = [each.iteration for each in seen if each.lineage == "ours" and each.problem is None]
    committed = data.draw(st.sampled_from(whole)) if whole else 31
    protected = data.draw(st.sets(st.integers(1, 30), max_size=2))
    deleted = {each.iteration for each in retention(
        seen, save_max=save_max, committed=committed, lineage="ours", protected=protected
    ).delete}  # fmt: skip
    by_number = {each.iteration: each for each in seen}
    assert committed not in deleted
    assert not deleted & protected
    assert all(by_number[each].lineage == "ours" and each < committed for each in deleted)
    stay = [each for each in sorted(whole, reverse=True) if each <= committed]
    assert {each for each in whole if each in deleted} == set(stay[save_max:]) - protected - {committed}


@quick
@given(iterations, st.one_of(st.none(), st.integers(1, 30)), st.one_of(st.none(), st.integers(1, 30)))
def test_candidates_are_whole_and_of_one_lineage(seen, tracker, committed):
    choice = candidates(record(committed) if committed else None, tracker=tracker, found=seen)
    assert all(each.found.problem is None for each in choice.candidates)
    assert len({each.found.lineage for each in choice.candidates}) <= 1
    assert len(choice.candidates) + len(choice.passed) == len(seen)
    if committed:
        assert all(each.found.iteration <= committed for each in choice.candidates)


def test_when_to_save():
    def due(iteration, **others):
        return save_due(iteration, **({"enable_save": True, "every_steps": 5, "last_saved": None} | others))

    assert [each for each in range(12) if due(each).due] == [5, 10]
    assert not due(5, last_saved=5).due
    assert not due(5, enable_save=False).due
    assert "multiple of 5" in due(5).reason
