"""The loader: every sample once, with its own randomness, whatever happens between fetch and commit."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.errors import DataError, ElasticError
from elastic.plan.order import Order
from tests.harness.datasets import Drawing, Failing
from tests.harness.loading import LENGTH, SEED, flat, make, run_undisturbed


@pytest.fixture(scope="module")
def reference():
    return run_undisturbed()


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_any_worlds_and_deaths_give_the_undisturbed_run(reference, seed):
    chance = random.Random(seed)
    position, steps, died = 0, [], 0
    while position < 130:
        world_size = chance.randint(1, 5)
        loaders = [make(world_size=world_size, rank=rank, position=position) for rank in range(world_size)]
        for _ in range(chance.randint(0, 3)):
            if loaders[0].finished:
                break
            steps.append([micro for loader in loaders for micro in flat(loader.next_step())])
            assert len({loader.commit() for loader in loaders}) == 1
        position = loaders[0].position
        if not loaders[0].finished and (died == 0 or chance.random() < 0.5):
            for loader in loaders[: chance.randint(1, world_size)]:  # death between fetching and the optimizer step
                died += len(list(loader.next_step()))
    assert died > 0
    assert steps == reference
    used = [sample for step in steps for _, samples, *_ in step for sample in samples]
    assert used == list(range(130))


def test_each_epoch_holds_every_item_once(reference):
    indices = [index for step in reference for _, _, indices, *_ in step for index in indices]
    for epoch in range(3):
        assert sorted(indices[epoch * LENGTH : (epoch + 1) * LENGTH]) == list(range(LENGTH))
    items = [item[0] for step in reference for *_, items, _ in step for item in items]
    assert items == indices


def test_random_draws_belong_to_the_sample_and_differ(reference):
    draws = [item[1:] for step in reference for *_, items, _ in step for item in items]
    assert len(set(draws)) == 130
    collate_draws = {draw for step in reference for *_, draw in step}
    assert len(collate_draws) == sum(map(len, reference))


def used_items(steps):
    return [pair for step in steps for _, samples, _, items, _ in step for pair in zip(samples, items, strict=True)]


def test_another_batch_size_goes_on_from_the_same_sample(reference):
    loader = make()
    for _ in range(4):
        list(loader.next_step())
        loader.commit()
    later = run_undisturbed(batch=7, micro=2, position=loader.position)
    assert used_items(later) == used_items(reference[4:])


def test_the_same_step_comes_again_until_it_is_committed(reference):
    loader = make()
    first = flat(loader.next_step())
    next(loader.next_step())  # begun, broken off
    assert flat(loader.next_step()) == first == reference[0]
    loader.commit()
    assert flat(loader.next_step()) == reference[1]


def test_a_step_is_committed_only_when_all_of_it_was_fetched():
    loader = make()
    with pytest.raises(ElasticError, match=r"next_step\(\) comes first"):
        loader.commit()
    next(loader.next_step())
    with pytest.raises(ElasticError, match="only 1 of this rank's 4 micro-batches were fetched"):
        loader.commit()
    assert loader.position == 0


def test_batches_of_a_step_that_is_over_are_refused():
    loader = make()
    old = loader.next_step()
    next(old)
    list(loader.next_step())
    with pytest.raises(ElasticError, match="begun again"):
        next(old)


def test_moving_to_another_world_drops_what_was_fetched(reference):
    loader = make(world_size=2, rank=1)
    list(loader.next_step())
    loader.commit()
    next(loader.next_step())
    loader.move(position=loader.position, world_size=1, rank=0)
    assert flat(loader.next_step()) == reference[1]


def test_a_rank_without_slots_commits_steps_of_nothing():
    loader = make(world_size=9, rank=8)
    assert list(loader.next_step()) == []
    assert loader.commit() == 10


def test_the_end_is_announced_and_enforced():
    loader = make(total=10)
    list(loader.next_step())
    loader.commit()
    assert loader.finished
    with pytest.raises(ElasticError, match="all 10 samples of the run are consumed"):
        loader.next_step()


def test_the_default_collate_stacks_tensors():
    loader = make(collate_fn=None)
    index, *_ = next(loader.next_step()).batch
    assert index.tolist() == [Order(length=LENGTH, seed=SEED).index(sample) for sample in range(3)]


def test_a_failing_item_is_named_and_can_be_tried_again(reference):
    bad = Order(length=LENGTH, seed=SEED).index(4)
    loader = make(Failing(LENGTH, at=bad, times=1))
    with pytest.raises(OSError, match="cannot be read") as caught:
        list(loader.next_step())
    assert caught.value.__notes__ == [f"while fetching item {bad} of the data set (global sample 4)"]
    assert flat(loader.next_step()) == reference[0]


def test_a_data_set_that_cannot_serve_is_refused():
    with pytest.raises(DataError, match="the data set is empty"):
        make(Drawing(0))
    with pytest.raises(DataError, match="holds 40 items, but the run's order was made for 41"):
        make(Drawing(40))
