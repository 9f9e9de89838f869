"""The lease keeper renews at its own pace, whatever its agent says meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.lease import LeasePage
from elastic.rendezvous.etcd_link import LOOK_UP_S, EtcdLink
from elastic.rendezvous.lease_keeper import Orders, keep
from elastic.rendezvous.options import RendezvousOptions


class Store:
    """Counts renewals; what follows on each of them is given."""

    def __init__(self, *then: Callable[[], object]) -> None:
        self.renewed: list[int] = []
        self._then = list(then)

    def keep_alive(self, lease: int) -> float:
        self.renewed.append(lease)
        self._then.pop(0)()
        return 5.0


@pytest.mark.parametrize(("said", "renewed"), [(7, [7]), (8, [7, 8])])
def test_only_another_lease_is_renewed_at_once(said: int, renewed: list[int]) -> None:
    reader, writer = os.pipe()
    page = LeasePage.create()

    def say(lease: int) -> None:
        os.write(writer, json.dumps({"lease": lease}).encode() + b"\n")

    def hang_up() -> None:
        os.close(writer)

    def say_and_hang_up() -> None:
        say(said)
        if said == 7:
            hang_up()

    store = Store(say_and_hang_up, hang_up)
    orders = Orders(reader, clock=SYSTEM_CLOCK)
    say(7)
    orders.wait(10.0)
    keep(store, page=page, agent=os.getppid(), orders=orders, pause_s=60.0, clock=SYSTEM_CLOCK)  # type: ignore[arg-type]
    assert store.renewed == renewed
    os.close(reader)
    page.remove()


def test_threads_that_wait_for_etcd_look_up_once_a_second() -> None:
    grpc_common = pytest.importorskip("grpc._common")
    EtcdLink(RendezvousOptions(endpoints=("127.0.0.1:1",), min_nodes=1, max_nodes=1, job_id="x")).close()
    asked: list[float] = []

    def wait(timeout: float) -> None:
        asked.append(timeout)

    grpc_common.wait(wait, lambda: bool(asked))
    assert asked == [LOOK_UP_S]
