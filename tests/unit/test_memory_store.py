"""The memory store does what every store must, and its faults can be switched."""

import pytest

from elastic.clock import ManualClock
from elastic.errors import StoreUnavailable
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from tests.harness.store_contract import Heard, StoreContract


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def server(clock):
    return MemoryServer(clock)


@pytest.fixture
def store(server):
    store = MemoryStore(server)
    yield store
    store.close()


@pytest.fixture
def end_lease(server, clock):
    def end(lease):
        clock.sleep(2)
        server.expire()

    return end


class TestMemoryStore(StoreContract):
    def test_compaction_and_a_cut_link_lead_to_a_reset(self, store, server):
        heard, other = Heard(), MemoryStore(server)
        watch = store.watch("/k", on_update=heard.on_update, on_break=heard.on_break)
        server.compact()
        heard.wait_for(lambda: [update.reset for update in heard.updates] == [True, True])
        store.cut()
        with pytest.raises(StoreUnavailable):
            store.get("/k")
        other.put("/k", "1")
        store.heal()
        heard.wait_for(lambda: heard.values() == {"/k": "1"})
        assert heard.updates[-1].reset
        assert heard.breaks == ["compacted", "link cut", "link mended"]
        watch.cancel()
