"""States of random number generators as tensors: they come back, and are always as large."""

from __future__ import annotations

import json
import random

import numpy
import pytest
import torch

from elastic.checkpoint.rng import apply_rng, capture_rng


@pytest.fixture(autouse=True)
def _as_before():
    numpy_state, own, torch_state = numpy.random.get_state(), random.getstate(), torch.get_rng_state()
    yield
    numpy.random.set_state(numpy_state)
    random.setstate(own)
    torch.set_rng_state(torch_state)


def draw() -> tuple[float, float, float, float]:
    return (random.gauss(0, 1), float(numpy.random.normal()), random.random(), float(torch.rand(())))


def test_what_is_drawn_next_comes_back():
    random.gauss(0, 1)  # every second one is kept for the next call
    numpy.random.normal()
    kept = capture_rng(3)
    first = draw()
    draw()
    assert apply_rng(kept, rank=3)
    assert draw() == first


def test_they_are_always_as_large():
    """Else an arena, which is laid out for sizes, would be laid out anew at each copy."""
    sizes, texts = set(), set()
    for seed in range(300):
        random.seed(seed)
        numpy.random.seed(seed)
        for _ in range(seed % 3):
            draw()
        kept = capture_rng(0)
        sizes.add(tuple(sorted((name, len(state)) for name, state in kept.items())))
        texts.add(len(bytes(kept["rng.0.random"].tolist()).rstrip()))
    assert len(sizes) == 1
    assert len(texts) > 1, "what is in them is not"


def test_the_longest_fit():
    state = [3, [2**32 - 1] * 625, -1.2345678901234567e-300]
    assert len(json.dumps(state)) < 8192


def test_those_of_earlier_versions_are_read():
    kept = capture_rng(0)
    first = draw()
    bare = {name: state if "torch" in name else _stripped(state) for name, state in kept.items()}
    assert len(bare["rng.0.numpy"]) < len(kept["rng.0.numpy"])
    assert apply_rng(bare, rank=0)
    assert draw() == first


def _stripped(state: torch.Tensor) -> torch.Tensor:
    return torch.frombuffer(bytearray(bytes(state.tolist()).rstrip()), dtype=torch.uint8)
