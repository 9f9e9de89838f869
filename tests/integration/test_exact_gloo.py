"""The same numbers at every world size, with real gloo groups of real processes."""

import pytest

from elastic.distributed.group import Alone
from tests.harness.training import STEPS, train
from tests.integration.test_gloo import results, start

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A world of one: a process too, with as many threads as the others."""
    (found,) = results(start("exact", 1, tmp_path_factory.mktemp("alone")))
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_exact_numerics_give_the_same_bits(size, alone, tmp_path):
    """float32 sums, an exchange of uneven parts, autocast, and parameters in bfloat16."""
    for found in results(start("exact", size, tmp_path)):
        assert found == alone


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [4, 5, 7, 8])
def test_exact_numerics_give_the_same_bits_in_larger_worlds(size, alone, tmp_path):
    test_exact_numerics_give_the_same_bits(size, alone, tmp_path)


@pytest.fixture(scope="module")
def alone_with_parts(tmp_path_factory):
    (found,) = results(start("exact parts", 1, tmp_path_factory.mktemp("alone-parts")))
    return found


@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.exhaustive) for size in (2, 4, 5))])
def test_exact_numerics_give_the_same_bits_with_dealt_out_parameters(size, alone_with_parts, tmp_path):
    """Of rows that no world size shares evenly; with three slots some ranks have nothing but stand-ins."""
    for found in results(start("exact parts", size, tmp_path)):
        assert found == alone_with_parts


@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.exhaustive) for size in (2, 4, 5))])
def test_plain_losses_differ_by_rounding_only(size, tmp_path):
    """Uneven shares, a ragged batch, accumulation, dropout, in double precision: 40 steps."""
    alone = train(Alone(), dropout=0.2).losses
    assert len(alone) == STEPS
    for found in results(start("train", size, tmp_path)):
        worst = max(abs(mine - theirs) / theirs for mine, theirs in zip(found["losses"], alone, strict=True))
        assert worst < 1e-12, worst
