"""An outage is told once, with its length at the end."""

import logging

from elastic.clock import ManualClock
from elastic.rendezvous.outage import Outage


def test_once_and_with_its_length(caplog):
    clock = ManualClock()
    outage = Outage("the watch", log=logging.getLogger("elastic.test"), clock=clock)
    with caplog.at_level(logging.INFO):
        outage.mended()
        for _ in range(100):
            outage.broke("nobody answers")
            clock.sleep(0.6)
        outage.mended()
        outage.mended()
        outage.broke("etcd was started again")
    assert caplog.messages == [
        "the watch broke (nobody answers); it mends itself",
        "the watch goes on after 60.0 s",
        "the watch broke (etcd was started again); it mends itself",
    ]
