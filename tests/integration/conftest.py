"""Real servers for the integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elastic.local.etcd import EtcdServer


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd with API v2 disabled, as it is by default. Every test has a job of its own in it."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server
