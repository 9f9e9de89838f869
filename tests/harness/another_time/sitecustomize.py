"""Loaded by every Python process under libfaketime: mends the sleep that this library breaks.

time.sleep() waits until a point of the monotonic clock. libfaketime moves that point as if this clock were faked, even
where it was told to leave it alone, and the sleep fails with "Invalid argument". Waiting for a length of time is fine.
"""

import select
import time


def _sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


time.sleep = _sleep
