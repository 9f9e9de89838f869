"""The name etcd is ours in torch's own registry, and where that cannot be, nobody is left with another's handler."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.rendezvous import api
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from elastic.errors import UsageError
from elastic.launch import entry
from elastic.rendezvous import plugin

PARAMETERS = api.RendezvousParameters("etcd", "", "job", 1, 4)


@pytest.fixture
def registry(monkeypatch):
    """A copy of torch's registry that the test may change."""
    monkeypatch.setattr(api.rendezvous_handler_registry, "_registry", dict(api.rendezvous_handler_registry._registry))
    return api.rendezvous_handler_registry


def test_the_name_is_taken_and_torchrun_gets_what_entry_creates(registry, monkeypatch):
    registry._registry["etcd"] = lambda parameters: pytest.fail("torch's own creator was used")
    ours = SimpleNamespace(get_backend=lambda: "etcd")
    monkeypatch.setattr(entry, "create", lambda parameters: ours if parameters is PARAMETERS else None)
    assert plugin.register() is plugin.create_handler
    assert get_rendezvous_handler(PARAMETERS) is ours


def test_another_taker_of_the_name_is_refused(registry):
    plugin.register()
    registry._registry["etcd"] = lambda parameters: None
    with pytest.raises(UsageError, match="speaks API v2 only"):
        plugin.create_handler(PARAMETERS)


def test_a_torch_that_keeps_its_creators_elsewhere_is_refused(monkeypatch, caplog):
    monkeypatch.setattr(api, "rendezvous_handler_registry", SimpleNamespace())
    assert plugin.register() is plugin.create_handler
    assert "use a version of torch" in caplog.text
    with pytest.raises(UsageError, match="keeps its rendezvous creators where elastic does not find them"):
        plugin.create_handler(PARAMETERS)


def test_loading_it_is_cheap():
    heavy = ("torch", "grpc", "etcd3", "yaml")
    code = f"import sys, elastic.rendezvous.plugin; assert not set(sys.modules) & set({heavy})"
    subprocess.run([sys.executable, "-c", code], check=True)
