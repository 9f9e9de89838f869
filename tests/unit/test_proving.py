"""Who belongs to a generation and who does not: ranks as threads, strangers among them."""

from __future__ import annotations

import pytest
import torch

from elastic.distributed.group import Alone
from elastic.distributed.proving import NONCE_BYTES, PROOF_BYTES, proof, strangers
from tests.harness.ranks import run_tensor_ranks

SECRET = "of this generation"


def found(size, *, secrets, cheat=lambda group: None):
    """Whom each rank does not know."""

    def one(group):
        cheat(group)
        own = secrets(group.rank)
        return strangers(group, secret=own, generation=4, draw=lambda n: bytes([group.rank + 1]) * n)

    return run_tensor_ranks(size, one)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_members_know_each_other(size):
    assert found(size, secrets=lambda rank: SECRET) == [()] * size


@pytest.mark.parametrize("stranger", [0, 1, 2])
def test_nobody_takes_anything_from_a_stranger_nor_it_from_them(stranger):
    others = tuple(rank for rank in range(3) if rank != stranger)
    expected = [(stranger,) if rank != stranger else others for rank in range(3)]
    assert found(3, secrets=lambda rank: "guessed" if rank == stranger else SECRET) == expected


def test_the_answer_of_another_rank_is_no_answer():
    """A stranger sits at rank 1 and shows what rank 0 shows."""

    copied = []

    def cheat(group):
        share = group._share

        def as_rank_0(value):
            everyone = share(value)
            if len(everyone[0]) == PROOF_BYTES:
                everyone[1] = everyone[0]
                copied.append(group.rank)
            return everyone

        group._share = as_rank_0

    assert found(3, secrets=lambda rank: SECRET, cheat=cheat) == [(1,)] * 3
    assert sorted(copied) == [0, 1, 2]


def test_a_recorded_answer_fits_no_other_numbers_generation_or_rank():
    given = {
        proof(secret, generation=generation, rank=rank, nonces=nonces)
        for secret in (SECRET, "other")
        for generation in (1, 11)
        for rank in (0, 1, 11)
        for nonces in (b"1" * NONCE_BYTES, b"2" * NONCE_BYTES)
    }
    assert len(given) == 2 * 2 * 3 * 2
    assert {len(each) for each in given} == {PROOF_BYTES}


def test_where_there_is_no_secret_or_nobody_else_nothing_is_said():
    class Silent(Alone):
        size = 3

        def start_collect(self, whole: torch.Tensor, piece: torch.Tensor):
            raise AssertionError("it spoke")

    assert strangers(Silent(), secret="", generation=1, draw=bytes) == ()
    assert strangers(Alone(), secret=SECRET, generation=1, draw=bytes) == ()
    with pytest.raises(AssertionError, match="it spoke"):
        strangers(Silent(), secret=SECRET, generation=1, draw=bytes)
