"""The handler as torch's own agent uses it: real etcd, real stores."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from elastic.local.etcd import free_port
from elastic.rendezvous.assemble import assemble

pytestmark = pytest.mark.integration


@pytest.fixture
def make_handler(etcd, request):
    handlers = []

    def make(*, nodes=(1, 2), endpoint=None, **config):
        conf = {"timeout": "20", "first_wait_s": "0.3"} | config
        parameters = RendezvousParameters("etcd", endpoint or etcd.endpoint, request.node.name, *nodes, **conf)
        handlers.append(assemble(parameters, environ=os.environ, node=f"node{len(handlers)}"))
        return handlers[-1]

    yield make
    for handler in handlers:
        fail(handler)


def fail(handler):
    """What torch does when its agent raised."""
    try:
        raise RuntimeError("the agent failed")
    except RuntimeError:
        handler.shutdown()


def together(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(20) for future in [pool.submit(call) for call in calls]]


def test_two_agents_share_the_store_of_rank_0_until_the_next_generation(make_handler):
    handlers = make_handler(), make_handler()
    first = together(*(handler.next_rendezvous for handler in handlers))
    assert [(info.rank, info.world_size) for info in first] == [(0, 2), (1, 2)]
    assert first[0].bootstrap_store_info == first[1].bootstrap_store_info
    assert first[0].bootstrap_store_info.master_addr == "127.0.0.1"
    first[0].store.set("key", "value")
    assert first[1].store.get("key") == b"value"
    assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0]
    second = together(*(handler.next_rendezvous for handler in handlers))
    assert second[0].bootstrap_store_info != first[0].bootstrap_store_info
    assert not second[1].store.check(["key"])


def test_a_third_agent_is_announced_and_success_closes_the_job(make_handler):
    one = make_handler()
    one.next_rendezvous()
    with ThreadPoolExecutor(1) as pool:
        other = make_handler()
        joined = pool.submit(other.next_rendezvous)
        one.coordinator._watch.wait(one.num_nodes_waiting, timeout_s=10)
        assert one.num_nodes_waiting() == 1
        assert one.next_rendezvous().world_size == joined.result(20).world_size == 2
    together(one.shutdown, other.shutdown)
    assert not any(thread.name.startswith("elastic-lease") for thread in threading.enumerate())


def test_a_failed_agent_does_not_close_the_job(make_handler):
    one, other = make_handler(), make_handler()
    together(one.next_rendezvous, other.next_rendezvous)
    fail(one)
    assert other.next_rendezvous().world_size == 1
    assert not other.is_closed()


def test_torchs_words_for_the_end_of_waiting(make_handler):
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes"):
        make_handler(nodes=(2, 2), timeout="0.3").next_rendezvous()
    with pytest.raises(RendezvousConnectionError, match="--rdzv-endpoint"):
        make_handler(endpoint=f"127.0.0.1:{free_port()}", read_timeout="0.2", connect_timeout_s="0.2").next_rendezvous()


def test_a_waiting_agent_hears_that_the_job_is_over(make_handler):
    one = make_handler(nodes=(1, 1))
    one.next_rendezvous()
    spare = make_handler(nodes=(1, 1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(spare.next_rendezvous)
        one.coordinator._watch.wait(lambda: len(one.coordinator.members()) == 2, timeout_s=0.3)
        one.shutdown()
        with pytest.raises(RendezvousClosedError, match="succeeded with exit code 0"):
            waiting.result(20)
    assert spare.is_closed()
