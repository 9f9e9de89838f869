"""The etcd store does what every store must, and lives through what etcd does to it."""

import re

import pytest

from elastic.errors import StoreRefused, StoreUnavailable
from elastic.local.etcd import EtcdServer, free_port
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.etcd_link import EtcdLink
from elastic.rendezvous.kv import Delete
from elastic.rendezvous.options import RendezvousOptions
from tests.harness.store_contract import Heard, StoreContract

pytestmark = pytest.mark.integration


def open_store(*endpoints, **options):
    return EtcdStore(RendezvousOptions(job_id="j", min_nodes=1, max_nodes=1, endpoints=endpoints, **options))


@pytest.fixture
def store(etcd):
    store = open_store(etcd.endpoint)
    yield store
    store.transact([], ops=[Delete(entry.key) for entry in store.range("/").entries])
    store.close()


@pytest.fixture
def end_lease():
    return lambda lease: None  # the watch's deadline is longer than the lease


class TestEtcdStore(StoreContract):
    pass


@pytest.fixture
def own_etcd(tmp_path):
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


def test_a_watch_goes_on_after_etcd_was_killed(own_etcd, caplog):
    caplog.set_level("INFO", logger="elastic.rendezvous.etcd_stream")
    store, heard = open_store(own_etcd.endpoint, call_timeout_s=15), Heard()
    watch = store.watch("/k/", prefix=True, on_update=heard.on_update, on_break=heard.on_break)
    store.put("/k/a", "1")
    heard.wait_for(lambda: heard.values() == {"/k/a": "1"})
    own_etcd.kill()
    heard.wait_for(lambda: len(heard.breaks) >= 3)
    own_etcd.start()
    store.put("/k/b", "2")
    heard.wait_for(lambda: heard.values() == {"/k/a": "1", "/k/b": "2"})
    assert [update.reset for update in heard.updates].count(True) == 1, "it went on where it had been"
    broke, mended = caplog.messages
    assert broke.startswith("the stream of watches broke (")
    assert re.fullmatch(r"the stream of watches goes on after [0-9.]+ s", mended)
    watch.cancel()
    store.close()


def test_a_watch_notices_that_etcd_lost_its_data(own_etcd):
    store, heard = open_store(own_etcd.endpoint, call_timeout_s=15), Heard()
    for number in range(5):
        store.put("/k/a", str(number))
    watch = store.watch("/k/", prefix=True, on_update=heard.on_update, on_break=heard.on_break)
    heard.wait_for(lambda: heard.values() == {"/k/a": "4"})
    own_etcd.kill()
    own_etcd.wipe()
    own_etcd.start()
    heard.wait_for(lambda: heard.values() == {}, deadline_s=20)
    watch.cancel()
    store.close()


def test_a_frozen_etcd_is_noticed_by_the_deadline_and_left(own_etcd):
    store, heard = open_store(own_etcd.endpoint, call_timeout_s=1), Heard()
    watch = store.watch("/k", on_update=heard.on_update, on_break=heard.on_break)
    heard.wait_for(lambda: heard.updates)
    own_etcd.pause()
    with pytest.raises(StoreUnavailable, match="did not answer within 1 s"):
        store.get("/k")
    heard.wait_for(lambda: heard.breaks)
    own_etcd.resume()
    store.put("/k", "1")
    heard.wait_for(lambda: heard.values() == {"/k": "1"})
    watch.cancel()
    store.close()


def test_compaction_while_a_watch_is_broken_leads_to_a_reset(own_etcd):
    store, heard = open_store(own_etcd.endpoint, call_timeout_s=15), Heard()
    watch = store.watch("/k", on_update=heard.on_update, on_break=heard.on_break)
    heard.wait_for(lambda: heard.updates)
    other = open_store(own_etcd.endpoint)
    watch._revision = 1  # as if nothing had been heard since
    for number in range(3):
        revision = other.put("/k", str(number))
    other._link.call("KV", "Compact", other._rpc.CompactionRequest(revision=revision, physical=True))
    heard.wait_for(lambda: heard.values() == {"/k": "2"})
    watch._revision = 1
    store._link.next_endpoint()
    heard.wait_for(lambda: any("forgot" in reason for reason in heard.breaks))
    heard.wait_for(lambda: heard.updates[-1].reset)
    assert heard.values() == {"/k": "2"}
    watch.cancel()
    other.close()
    store.close()


def test_the_next_endpoint_is_tried(etcd):
    dead = f"127.0.0.1:{free_port()}"
    store = open_store(dead, etcd.endpoint)
    assert store.put("/failover", "1") > 0
    store.close()


def test_nobody_there_names_what_was_tried_and_what_to_do():
    dead = f"127.0.0.1:{free_port()}"
    store = open_store(dead, call_timeout_s=0.5)
    with pytest.raises(StoreUnavailable) as caught:
        store.get("/x")
    message = str(caught.value)
    assert f"http://{dead}" in message
    assert "did not answer within 0.5 s" in message
    assert "--rdzv-endpoint or ETCD_ENDPOINTS" in message
    store.close()


def test_users_and_passwords(own_etcd, tmp_path):
    store = open_store(own_etcd.endpoint)
    rpc, call = store._rpc, store._link.call
    call("Auth", "UserAdd", rpc.AuthUserAddRequest(name="root", password="secret"))
    call("Auth", "RoleAdd", rpc.AuthRoleAddRequest(name="root"))
    call("Auth", "UserGrantRole", rpc.AuthUserGrantRoleRequest(user="root", role="root"))
    call("Auth", "AuthEnable", rpc.AuthEnableRequest())
    with pytest.raises(StoreRefused, match="asked as no user"):
        store.get("/x")
    store.close()
    for password, right in (("secret", True), ("wrong", False)):
        file = tmp_path / password
        file.write_text(password + "\n")
        login = open_store(own_etcd.endpoint, user="root", password_file=str(file))
        heard = Heard()
        if right:
            login.put("/x", "1")
            watch = login.watch("/x", on_update=heard.on_update, on_break=heard.on_break)
            heard.wait_for(lambda heard=heard: heard.values() == {"/x": "1"})
            watch.cancel()
            login._link._token = "stale.1"
            assert login.get("/x").value == "1", "a new login follows a stale token"
        else:
            with pytest.raises(StoreRefused, match="user 'root'"):
                login.get("/x")
        login.close()


def test_leases_are_kept_on_one_stream_across_a_restart_of_etcd(own_etcd):
    streams = []

    class Link(EtcdLink):
        def open_stream(self, stub, method, requests):
            streams.append(method)
            return super().open_stream(stub, method, requests)

    options = RendezvousOptions(
        job_id="none", min_nodes=1, max_nodes=1, endpoints=(own_etcd.endpoint,), call_timeout_s=5
    )
    store = EtcdStore(options, link=Link(options))
    try:
        leases = [store.grant(60) for _ in range(20)]
        assert {store.keep_alive(lease) for lease in (*leases, *leases)} == {60.0}
        assert streams == ["LeaseKeepAlive"]
        store.revoke(leases[0])
        assert store.keep_alive(leases[0]) == 0.0
        own_etcd.kill()
        own_etcd.start()
        assert {store.keep_alive(lease) for lease in leases[1:]} == {60.0}
        assert len(streams) > 1, "the restart did break the stream"
    finally:
        store.close()


def test_a_frozen_etcd_does_not_renew_for_ever(own_etcd):
    store = open_store(own_etcd.endpoint, call_timeout_s=1)
    try:
        lease = store.grant(60)
        assert store.keep_alive(lease) == 60.0
        own_etcd.pause()
        with pytest.raises(StoreUnavailable):
            store.keep_alive(lease)
        own_etcd.resume()
        assert store.keep_alive(lease) == 60.0
    finally:
        own_etcd.resume()
        store.close()
