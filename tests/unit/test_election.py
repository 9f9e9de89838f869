"""The election's thread: a defect in what it calls is told, and takes nobody the lead for good."""

import threading

from elastic.rendezvous.election import Election
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.memory import MemoryStore

KEYS = Keys.of(prefix="/elastic", job_id="j")


def test_a_defect_while_leading_is_told_and_the_agent_leads_again(server, caplog):
    store, led, may_end = MemoryStore(server), threading.Event(), threading.Event()
    failures = [ValueError("a mistake of ours"), KeyError("another")]

    def lead(own):
        if failures:
            raise failures.pop()
        led.set()
        assert may_end.wait(10)

    election = Election(store, keys=KEYS, agent="a", lead=lead)
    store.put(KEYS.candidate("a"), "a")
    election.start()
    election.stand(after=None)
    assert led.wait(10)
    assert election.is_leader
    assert not failures, "both were raised"
    assert caplog.text.count("election: a defect; it is tried again") == 2
    assert "ValueError: a mistake of ours" in caplog.text, "with its traceback"
    may_end.set()
    election.stop()
    assert not election.is_leader
    assert not [thread for thread in threading.enumerate() if thread.name == "elastic-election"]
    store.close()
