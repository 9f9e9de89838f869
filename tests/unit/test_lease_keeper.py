"""The lease keeper renews at its own pace, whatever its agent says meanwhile."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.lease import LeasePage
from elastic.rendezvous.etcd_link import LOOK_UP_S, EtcdLink
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.lease_keeper import KeeperProcess, Orders, keep
from elastic.rendezvous.membership import AgentIdentity, first_member
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.options import RendezvousOptions
from elastic.rendezvous.registration import Registration


class Store:
    """Counts renewals; what follows on each of them is given."""

    def __init__(self, *then: Callable[[], object]) -> None:
        self.renewed: list[int] = []
        self._then = list(then)

    def keep_alive(self, lease: int) -> float:
        self.renewed.append(lease)
        self._then.pop(0)()
        return 5.0


def test_one_that_cannot_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """With the variables of when it was made: a thread that sets one meanwhile moves what exec reads."""
    started: list[dict[str, str]] = []

    class Process:
        def __init__(self, command: list[str], *, env: dict[str, str], **how: object) -> None:
            started.append(env)
            if len(started) == 1:
                raise OSError(14, "Bad address")
            self.stdin, self.pid = io.BytesIO(), 1

    monkeypatch.setattr("subprocess.Popen", Process)
    environ, page = {"SET": "before"}, LeasePage.create()
    keeper = KeeperProcess(RendezvousOptions(job_id="j", min_nodes=1, max_nodes=1), page=page, environ=environ)
    environ["SET"] = "later"
    keeper.keep(1)
    assert keeper.pid is None
    assert "the lease keeper cannot be started, and will be later" in caplog.text
    keeper.keep(1)
    assert keeper.pid == 1
    assert started == [{"SET": "before"}] * 2
    page.remove()


def test_whatever_goes_wrong_beside_it_the_agent_s_own_thread_renews() -> None:
    identity = AgentIdentity(agent="a", node="a", address="127.0.0.1")

    class Broken:
        def keep(self, lease: int) -> None:
            raise RuntimeError("a defect")

        def stop(self) -> None:
            pass

    server = MemoryServer()
    renewed = threading.Event()
    registration = Registration(
        MemoryStore(server), keys=Keys.of(prefix="/jobs", job_id="j"), member=first_member(identity), ttl_s=1,
        clock=SYSTEM_CLOCK,
        on_registered=lambda _: None, on_renewed=lambda: bool(renewed.set()), keeper=Broken(),
    )  # fmt: skip
    registration.start()
    try:
        assert renewed.wait(10.0)
    finally:
        registration.stop(revoke=True)


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
