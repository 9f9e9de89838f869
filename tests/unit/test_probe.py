"""A probe tells the living from the dead, the frozen and the strangers."""

import pytest

from elastic.errors import StoreUnavailable, UsageError
from elastic.rendezvous.address import address_towards
from elastic.rendezvous.model import ProbeResult
from elastic.rendezvous.probe import ProbeListener, Target, listen_on, probe, probe_all


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_alive_then_refused(address):
    listener = ProbeListener("me", address=address)
    listener.start()
    target = Target(address=address, port=listener.port)
    assert probe(target, agent="me") is ProbeResult.ALIVE
    assert probe(target, agent="you") is ProbeResult.REFUSED
    assert probe_all({"me": target, "you": target}) == {"me": ProbeResult.ALIVE, "you": ProbeResult.REFUSED}
    listener.stop()
    assert probe(target, agent="me") is ProbeResult.REFUSED


def test_a_port_that_accepts_but_does_not_answer_is_silent():
    with listen_on("127.0.0.1") as frozen:
        target = Target(address="127.0.0.1", port=frozen.getsockname()[1])
        assert probe(target, agent="me", timeout_s=0.05) is ProbeResult.SILENT


def test_an_address_of_another_machine_is_refused_with_the_remedy():
    with pytest.raises(UsageError, match="--local-addr"):
        ProbeListener("me", address="192.0.2.1")


def test_the_address_is_the_one_that_reaches_etcd():
    assert address_towards(["127.0.0.1:2379"]) == "127.0.0.1"
    assert address_towards(["[::1]:2379"]) == "::1"
    with pytest.raises(StoreUnavailable, match="no way to etcd"):
        address_towards(["nowhere.invalid:2379"])
