"""What every key-value store must do. Run by a unit test on memory and by an integration test on a real etcd."""

from __future__ import annotations

import threading

import pytest

from elastic.rendezvous.errors import LeaseEnded
from elastic.rendezvous.kv import Delete, Get, KeyValueStore, Put, Update, created_at, holds, modified_at, present


class Heard:
    """Collects what a watch tells; `wait_for` waits with a deadline."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.breaks: list[str] = []
        self.state: dict = {}
        self._changed = threading.Condition()

    def on_update(self, update: Update) -> None:
        with self._changed:
            self.updates.append(update)
            self.state = update.applied_to(self.state)
            self._changed.notify_all()

    def on_break(self, reason: str) -> None:
        with self._changed:
            self.breaks.append(reason)
            self._changed.notify_all()

    def wait_for(self, condition, deadline_s: float = 10.0) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=deadline_s), (self.updates, self.breaks)

    def values(self) -> dict[str, str]:
        return {key: entry.value for key, entry in self.state.items()}


class StoreContract:
    """Subclasses give the fixtures `store` and `end_lease(lease)` (which makes a lease run out)."""

    def test_put_and_get(self, store: KeyValueStore):
        assert store.get("/a") is None
        first = store.put("/a", "1")
        second = store.put("/a", "zwei €")
        entry = store.get("/a")
        assert (entry.value, entry.create_revision, entry.mod_revision) == ("zwei €", first, second)
        assert first < second

    def test_range_is_by_prefix_and_key(self, store: KeyValueStore):
        for key in ("/r/b", "/r/a", "/r", "/s", "/r0"):
            store.put(key, key)
        snapshot = store.range("/r/")
        assert [entry.key for entry in snapshot.entries] == ["/r/a", "/r/b"]
        assert snapshot.revision >= max(entry.mod_revision for entry in snapshot.entries)

    @pytest.mark.parametrize("right", [True, False])
    def test_transaction_is_all_or_nothing(self, store: KeyValueStore, right: bool):
        revision = store.put("/t", "1")
        compares = [
            present("/t"),
            modified_at("/t", revision),
            created_at("/t", revision),
            modified_at("/new", 0),
            created_at("/new", 0),
            holds("/t", "1" if right else "2"),
        ]
        result = store.transact(compares, ops=[Put("/t", "2"), Put("/new", "x"), Delete("/absent")])
        assert result.succeeded is right
        assert store.get("/t").value == ("2" if right else "1")
        assert (store.get("/new") is not None) is right
        if right:
            assert store.get("/t").mod_revision == store.get("/new").mod_revision == result.revision

    @pytest.mark.parametrize(
        "compare", [present("/no"), created_at("/yes", 0), modified_at("/yes", 0), holds("/no", "")]
    )
    def test_comparison_that_does_not_hold(self, store: KeyValueStore, compare):
        store.put("/yes", "1")
        assert not store.transact([compare], ops=[]).succeeded

    def test_revoking_a_lease_removes_its_keys(self, store: KeyValueStore):
        lease = store.grant(60)
        store.put("/leased", "1", lease=lease)
        store.put("/free", "1")
        assert store.get("/leased").lease == lease
        assert store.keep_alive(lease) == 60
        store.revoke(lease)
        store.revoke(lease)
        assert store.get("/leased") is None
        assert store.get("/free") is not None
        assert store.keep_alive(lease) == 0

    def test_writing_under_an_ended_lease_is_refused(self, store: KeyValueStore):
        lease = store.grant(60)
        store.revoke(lease)
        with pytest.raises(LeaseEnded):
            store.put("/x", "1", lease=lease)
        with pytest.raises(LeaseEnded):
            store.transact([], ops=[Put("/x", "1", lease)])
        assert store.get("/x") is None

    def test_a_lease_that_is_not_renewed_ends(self, store: KeyValueStore, end_lease):
        heard = Heard()
        lease = store.grant(2)
        store.put("/short", "1", lease=lease)
        watch = store.watch("/short", on_update=heard.on_update, on_break=heard.on_break)
        heard.wait_for(lambda: heard.values() == {"/short": "1"})
        end_lease(lease)
        heard.wait_for(lambda: heard.values() == {})
        assert heard.updates[-1].deleted == ("/short",)
        watch.cancel()

    def test_watch_tells_all_that_is_and_then_what_changes(self, store: KeyValueStore):
        heard = Heard()
        store.put("/w/old", "1")
        watch = store.watch("/w/", prefix=True, on_update=heard.on_update, on_break=heard.on_break)
        heard.wait_for(lambda: heard.updates)
        assert heard.updates[0].reset
        assert heard.values() == {"/w/old": "1"}
        store.put("/w/new", "2")
        store.put("/other", "no")
        store.transact([], ops=[Put("/w/old", "3"), Delete("/w/new")])
        heard.wait_for(lambda: heard.values() == {"/w/old": "3"})
        assert not any(update.reset for update in heard.updates[1:])
        watch.cancel()
        count = len(heard.updates)
        store.put("/w/late", "1")
        assert len(heard.updates) == count
        assert not heard.breaks

    def test_watch_of_a_key_that_is_not_there(self, store: KeyValueStore):
        heard = Heard()
        watch = store.watch("/absent", on_update=heard.on_update, on_break=heard.on_break)
        heard.wait_for(lambda: heard.updates)
        assert (heard.updates[0].reset, heard.updates[0].entries) == (True, ())
        store.put("/absent", "1")
        heard.wait_for(lambda: heard.values() == {"/absent": "1"})
        watch.cancel()

    def test_a_watch_may_cancel_itself(self, store: KeyValueStore):
        heard, watches = Heard(), []

        def on_update(update: Update) -> None:
            if update.entries:
                watches[0].cancel()
            heard.on_update(update)

        watches.append(store.watch("/self", on_update=on_update, on_break=heard.on_break))
        heard.wait_for(lambda: heard.updates)
        store.put("/self", "1")
        heard.wait_for(lambda: heard.values() == {"/self": "1"})

    def test_a_watch_since_a_revision_tells_what_came_after(self, store: KeyValueStore):
        heard = Heard()
        store.put("/since", "1")
        known = store.put("/since", "2")
        watch = store.watch("/since", since=known, on_update=heard.on_update, on_break=heard.on_break)
        assert not heard.updates
        store.put("/since", "3")
        heard.wait_for(lambda: heard.values() == {"/since": "3"})
        watch.cancel()
        late = Heard()
        watch = store.watch("/since", since=known, on_update=late.on_update, on_break=late.on_break)
        late.wait_for(lambda: late.values() == {"/since": "3"})
        watch.cancel()

    def test_a_write_may_ask_what_was_there(self, store: KeyValueStore):
        before = store.put("/old", "1")
        done = store.transact([], ops=[Put("/old", "2", tell_replaced=True), Put("/none", "1", tell_replaced=True)])
        assert list(done.replaced) == ["/old"]
        assert (done.replaced["/old"].value, done.replaced["/old"].mod_revision) == ("1", before)
        assert not store.transact([], ops=[Put("/old", "3")]).replaced

    def test_a_transaction_may_read(self, store: KeyValueStore):
        store.put("/read", "1")
        ops = [Get("/read"), Put("/written", "2"), Get("/missing")]
        done = store.transact([present("/read")], ops=ops)
        assert done.read == {"/read": store.get("/read"), "/missing": None}
        assert store.get("/written").mod_revision == done.revision
        assert not store.transact([present("/missing")], ops=ops).read

    def test_watches_of_one_client_do_not_disturb_one_another(self, store: KeyValueStore):
        heard = [Heard() for _ in range(5)]
        watches = [
            store.watch(f"/n/{number}", on_update=each.on_update, on_break=each.on_break)
            for number, each in enumerate(heard)
        ]
        watches.pop(2).cancel()
        for number in range(5):
            store.put(f"/n/{number}", "x")
        for number in (0, 1, 3, 4):
            heard[number].wait_for(lambda number=number: heard[number].values() == {f"/n/{number}": "x"})
        assert len(heard[2].updates) == 1
        assert not any(each.breaks for each in heard)
        for watch in watches:
            watch.cancel()
