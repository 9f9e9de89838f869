"""What holds for every test: it leaves nothing behind, and a failing random test can be run again."""

import random
import signal

import pytest
from hypothesis import settings

from tests.harness import leaks

# Machines under load are slow; a test that is too slow shows in --durations.
settings.register_profile("elastic", deadline=None, print_blob=True)
settings.load_profile("elastic")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    leaks.adopt_orphans()
    # A shell starts what it runs in the background with SIGINT ignored, and every process that a test starts would
    # inherit that: a worker that is interrupted would go on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_report_header(config):
    return f"random seed: run again with --hypothesis-seed={config.option.hypothesis_seed}"


@pytest.fixture(autouse=True)
def _leak_police():
    """Fail the test that leaves a process, thread, variable, shared memory or port behind."""
    before = leaks.look()
    yield
    found = leaks.leaks(before, grace_s=leaks.GRACE_S)
    if found:
        leaks.clean_up(before)
        pytest.fail("left behind: " + "; ".join(found), pytrace=False)
