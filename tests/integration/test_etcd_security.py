"""TLS, client certificates, users: agents on an etcd that asks who they are; nothing secret gets out."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from elastic.cli import main
from elastic.clock import SYSTEM_CLOCK
from elastic.errors import StoreRefused, StoreUnavailable
from elastic.events import Cause
from elastic.local.etcd import EtcdServer
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.parameters import options_from
from tests.harness import etcd_admin
from tests.harness.agents import Job
from tests.harness.certificates import Authority
from tests.harness.etcd_admin import User, enable_users
from tests.harness.store_contract import Heard

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

ROOT_PASSWORD = "the-root-secret"
PASSWORD = "the-job-secret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def from_torchrun(endpoint, *, run_id="job", **conf):
    """Options as torchrun would hand them over."""
    given = SimpleNamespace(endpoint=endpoint, run_id=run_id, min_nodes=1, max_nodes=4, local_addr=None)
    given.config = {name: str(value) for name, value in conf.items()}
    return options_from(given, environ={})


def assert_agents_agree(options, **more):
    """Two agents with these options join, commit, and lose one of them."""
    reach = {"endpoints": options.endpoints, "prefix": options.prefix, "job_id": options.job_id}
    job = Job(lambda: EtcdStore(options), **reach, **more)
    try:
        a, b = job.start("a", "b")
        assert a.coordinator.commit("one").granted
        b.stop()
        a.fail()
        job.expect([a], size=1, after=1)
    finally:
        job.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_server_tls_in_the_spelling_of_the_old_backend(tmp_path, authority, host):
    with EtcdServer(tmp_path / "etcd", host=host, tls=authority.server()) as server:
        assert_agents_agree(from_torchrun(server.endpoint, protocol="https", cacert=authority.ca_file))
        unknown = EtcdStore(from_torchrun(f"https://{server.endpoint}", read_timeout=1))
        with pytest.raises(StoreUnavailable):
            unknown.get("/x")
        unknown.close()


def test_client_certificates_in_the_spelling_of_the_second_backend(tmp_path, authority):
    client = authority.sign("job", client=True)
    with EtcdServer(tmp_path / "etcd", tls=authority.server(client_auth=True)) as server:
        files = {"ssl_cert": client.cert_file, "ssl_cert_key": client.key_file, "ca_cert": authority.ca_file}
        assert_agents_agree(from_torchrun(f"https://{server.endpoint}", **files))
        without = EtcdStore(from_torchrun(server.endpoint, protocol="https", cacert=authority.ca_file, read_timeout=1))
        with pytest.raises(StoreUnavailable):
            without.get("/x")
        without.close()


def test_several_endpoints_of_which_one_answers_over_ipv6(tmp_path):
    with EtcdServer(tmp_path / "etcd", host="::1") as server:
        assert_agents_agree(from_torchrun(f"[::1]:1;{server.endpoint}"))


@pytest.fixture
def guarded(tmp_path):
    """An etcd whose tokens last 2 s and whose user may touch one job alone."""
    (tmp_path / "password").write_text(PASSWORD + "\n")
    root = Keys.of(prefix="/teams/blue", job_id="job").root + "/"
    with EtcdServer(tmp_path / "etcd", options=["--auth-token-ttl=2"]) as server:
        with etcd_admin.link(server.endpoint) as admin:
            admin.call("KV", "Put", admin.rpc.PutRequest(key=b"/teams/red/world", value=b"theirs"))
        users = (
            User(name="blue", password=PASSWORD, prefix=root),
            User(name="guest", password=PASSWORD, prefix=root, reads_only=True),
        )
        enable_users(server.endpoint, root_password=ROOT_PASSWORD, users=users)
        yield server


def login(server, tmp_path, **more):
    conf = {"etcd_prefix": "/teams/blue", "user": "blue", "password_file": tmp_path / "password"} | more
    return from_torchrun(server.endpoint, **conf)


def everything(server, tmp_path):
    (tmp_path / "root-password").write_text(ROOT_PASSWORD)
    return etcd_admin.keys(server.endpoint, user="root", password_file=str(tmp_path / "root-password"))


def test_a_role_limited_to_the_job_is_enough_and_nothing_outside_is_touched(guarded, tmp_path):
    before = everything(guarded, tmp_path)
    assert_agents_agree(login(guarded, tmp_path))
    after = everything(guarded, tmp_path)
    new = {key for key in after if key not in before}
    assert new
    assert all(key.startswith("/teams/blue/job/") for key in new), new
    assert {key: after[key] for key in before} == before
    assert PASSWORD not in str(after)
    store = EtcdStore(login(guarded, tmp_path))
    for key in ("/teams/red/world", "/teams/blue/job2/world"):
        with pytest.raises(StoreRefused, match="rights of that user"):
            store.get(key)
        with pytest.raises(StoreRefused):
            store.put(key, "x")
    store.close()


def test_a_token_that_ran_out_is_renewed_by_calls_and_by_watches(guarded, tmp_path):
    store, heard = EtcdStore(login(guarded, tmp_path)), Heard()
    store.put("/teams/blue/job/k", "1")
    first = store._link._token
    SYSTEM_CLOCK.sleep(4)  # etcd looks for old tokens once a second
    watch = store.watch("/teams/blue/job/k", since=1, on_update=heard.on_update, on_break=heard.on_break)
    heard.wait_for(lambda: heard.values() == {"/teams/blue/job/k": "1"})
    assert heard.breaks, "the watch was refused with the old token"
    second = store._link._token
    assert second != first
    SYSTEM_CLOCK.sleep(4)
    store.put("/teams/blue/job/k", "2")
    assert store._link._token != second
    heard.wait_for(lambda: heard.values() == {"/teams/blue/job/k": "2"})
    watch.cancel()
    store.close()


def test_agents_go_on_while_tokens_run_out(guarded, tmp_path):
    options = login(guarded, tmp_path)
    job = Job(lambda: EtcdStore(options), endpoints=options.endpoints, prefix=options.prefix, job_id="job", ttl_s=2)
    try:
        a, b = job.start("a", "b")
        leases = [agent.coordinator.lease for agent in (a, b)]
        tokens = [agent.store._link._token for agent in (a, b)]
        SYSTEM_CLOCK.sleep(7)  # three tokens long
        assert a.coordinator.commit("after").granted
        assert [agent.coordinator.lease for agent in (a, b)] == leases
        c = job.add("c")
        job.expect([a, b, c], size=3, after=1)
        assert all(old != agent.store._link._token for old, agent in zip(tokens, (a, b), strict=True)), "all ran out"
    finally:
        job.close()


def test_a_watch_of_what_is_forbidden_says_so(guarded, tmp_path):
    store, heard = EtcdStore(login(guarded, tmp_path)), Heard()
    watch = store.watch("/teams/red/world", since=1, on_update=heard.on_update, on_break=heard.on_break)
    heard.wait_for(lambda: any("rights of that user" in reason for reason in heard.breaks))
    watch.cancel()
    store.close()


def test_a_job_is_paused_by_whom_its_prefix_belongs_to_and_by_nobody_else(guarded, tmp_path, capsys):
    options = login(guarded, tmp_path)
    reach = {"endpoints": options.endpoints, "prefix": options.prefix, "job_id": options.job_id}
    job = Job(lambda: EtcdStore(options), **reach)
    conf = f"etcd_prefix=/teams/blue,user=blue,password_file={tmp_path / 'password'}"
    command = ["pause", f"--rdzv-endpoint={guarded.endpoint}", f"--rdzv-conf={conf}"]
    try:
        (agent,) = job.start("a")
        assert main([*command, "--rdzv-id=job2"]) != 0
        assert "rights of that user" in capsys.readouterr().err
        assert main(["pause", f"--rdzv-endpoint={guarded.endpoint}", "--rdzv-id=job"]) != 0
        assert main([*command, "--rdzv-id=job"]) == 0
        job.until(lambda: bool(agent.regroups), what="the pause")
        assert agent.regroups[-1].cause is Cause.PAUSED
    finally:
        job.close()


def test_who_may_only_read_sees_the_job_and_changes_nothing(guarded, tmp_path, capsys):
    options = login(guarded, tmp_path)
    reach = {"endpoints": options.endpoints, "prefix": options.prefix, "job_id": options.job_id}
    job = Job(lambda: EtcdStore(options), **reach)
    conf = f"etcd_prefix=/teams/blue,user=guest,password_file={tmp_path / 'password'}"
    where = [f"--rdzv-endpoint={guarded.endpoint}", f"--rdzv-conf={conf}"]
    try:
        job.start("a", "b")
        assert main(["status", "--job=job", "--json", *where]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["state"], [each["node"] for each in told["agents"]]) == ("AT WORK", ["a", "b"])
        assert main(["targets", "--job=job", *where]) == 0
        capsys.readouterr()
        for command in (["pause"], ["scale", "1:1"], ["drain", "a"]):
            assert main([*command, "--rdzv-id=job", *where]) != 0
            assert "rights of that user" in capsys.readouterr().err
        assert main(["doctor", "--job=job", "--json", *where]) == 0
        found = {each["check"]: each["level"] for each in json.loads(capsys.readouterr().out)["findings"]}
        assert (found["etcd"], found["versions"]) == ("ok", "warning"), "these agents tell no version"
    finally:
        job.close()
