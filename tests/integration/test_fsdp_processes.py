"""An own loop with dealt out parameters, through worlds of several sizes in the same processes, without any agent."""

import pytest

from tests.harness.placed import Places

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

STEPS = 60


@pytest.mark.parametrize(("numerics", "save_steps"), [("plain", 1000), ("exact", 5)])
def test_survivors_deal_their_model_out_anew_and_lose_nothing_but_the_step_in_flight(tmp_path, numerics, save_steps):
    """With saves now and then, and with none at all."""
    (tmp_path / "alone").mkdir()
    alone = Places(tmp_path / "alone", steps=STEPS, numerics=numerics, save_steps=save_steps, strategy="fsdp2")
    places = Places(tmp_path / "run", steps=STEPS, numerics=numerics, save_steps=save_steps, strategy="fsdp2")
    try:
        alone.form("a")
        expected = alone.workers["a"].hear("digest")["digest"]
        losses = {word["step"]: word["loss"] for word in alone.workers["a"].said if "step" in word}
        places.form("a", "b", "c")
        a, b = places.workers["a"], places.workers["b"]
        a.hear("step", least=12)
        places.lose("c")
        assert (a.hear("stays"), b.hear("stays")) == ({"stays": 1, "lost": True},) * 2
        places.form("a", "b")
        first = a.hear("step")
        assert (first["size"], first["generation"]) == (2, 2)
        a.hear("step", least=first["step"] + 5)
        places.lose("b")
        a.hear("stays")
        places.form("a")
        assert a.hear("step")["size"] == 1
        last = a.said[-1]["step"]
        a.place({})
        assert a.hear("stays")["lost"] is False
        places.form("a", "d", "e")
        a.hear("digest")
        digests = {
            worker.said[-1]["digest"] if worker is a else worker.hear("digest")["digest"]
            for worker in places.workers.values()
        }
        assert a.said[-1]["pid"] == a.pid
        assert last < STEPS
        assert len(digests) == 1
        if numerics == "exact":
            assert digests == {expected}
            told = [word for word in a.said if "step" in word]
            assert [word for word in told if word["loss"] != losses[word["step"]]] == []
        numbers = [word["step"] for word in a.said if "step" in word]
        # Done here, but copied not yet by who was lost.
        assert len(numbers) - len(set(numbers)) <= 2, "at most one step for each loss"
    finally:
        alone.close()
        places.close()
