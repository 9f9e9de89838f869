"""A store that is timed answers as it did before, and tells of each request."""

import pytest

from elastic.clock import ManualClock
from elastic.errors import StoreUnavailable
from elastic.metrics.fold import Metrics
from elastic.rendezvous.errors import LeaseEnded
from elastic.rendezvous.kv import Put, modified_at
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.timed import TimedStore
from tests.harness.scrape import samples


def test_every_verb_is_passed_on_and_told():
    told = []
    store = TimedStore(
        MemoryStore(MemoryServer()),
        clock=ManualClock(),
        on_request=lambda op, seconds, *, failed: told.append((op, failed)),
    )
    lease = store.grant(5)
    store.put("k", "v", lease=lease)
    assert store.get("k").value == "v"
    assert [entry.key for entry in store.range("").entries] == ["k"]
    assert store.transact([modified_at("n", 0)], ops=[Put("n", "1")]).succeeded
    assert store.keep_alive(lease) > 0
    store.revoke(lease)
    assert store.get("k") is None
    with pytest.raises(LeaseEnded):
        store.put("k", "v", lease=lease)
    assert [op for op, _ in told] == ["grant", "put", "get", "range", "transact", "keep_alive", "revoke", "get", "put"]
    assert not [op for op, failed in told if failed]  # an ended lease is an answer


def test_what_nobody_answers_is_an_error_with_its_time():
    clock, metrics = ManualClock(), Metrics()

    class Silent(MemoryStore):
        def get(self, key):
            clock.sleep(2.0)
            raise StoreUnavailable("nobody is there")

    store = TimedStore(Silent(MemoryServer()), clock=clock, on_request=metrics.store_request)
    with pytest.raises(StoreUnavailable):
        store.get("k")
    found = samples(metrics)
    assert found["elastic_store_errors_total", ("op", "get")] == 1
    assert found["elastic_store_request_duration_seconds_sum", ("op", "get")] == 2.0
