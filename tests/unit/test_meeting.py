"""A worker meets the others of its generation, and its agent says that it broke: that is heard at any moment.

Real sockets, a real store and torch's own group in this process, of which the other member never comes.
"""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from elastic.clock import SYSTEM_CLOCK
from elastic.errors import PeerLost
from elastic.link import Control
from elastic.session.meeting import meet
from elastic.world import World
from tests.unit.test_line import Agent, until

SOON_S = 10.0
"""Without a word they wait for 30 s."""


@pytest.fixture
def agent(monkeypatch):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    agent = Agent()
    yield agent
    agent.server.stop()


def meeting(link) -> float:
    """Seconds that it took to be told that nobody will come."""
    began_s = SYSTEM_CLOCK.monotonic_s()
    world = World(rank=1, size=2, generation=3, distributed=True)
    with pytest.raises(PeerLost, match="the group of this generation formed"):
        meet(world, link=link, emit=lambda event: None, clock=SYSTEM_CLOCK)
    return SYSTEM_CLOCK.monotonic_s() - began_s


def test_it_was_said_before_this_worker_began(agent):
    link = agent.link()
    agent.server.ask_all(Control.OVER)
    until(lambda: link.over)
    assert meeting(link) < SOON_S
    link.close()


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.01, 0.3])
def test_it_is_said_meanwhile(agent, after_s):
    link = agent.link()
    assert link.ask("record").granted  # it is known to the agent
    saying = threading.Timer(after_s, agent.server.ask_all, [Control.OVER])
    saying.start()
    assert meeting(link) < SOON_S
    saying.join()
    link.close()
