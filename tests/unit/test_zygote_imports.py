"""While a zygote imports, the garbage collector rests; afterwards all is as it was."""

from __future__ import annotations

import gc

import pytest

from elastic.launch.zygote import uncollected


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_rests_and_then_does_as_before(collects: bool) -> None:
    try:
        if not collects:
            gc.disable()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() is collects
        assert gc.get_freeze_count() > 1000, "what stays is gone through again"
    finally:
        gc.enable()
        gc.unfreeze()
