"""Prometheus' targets from member keys: where an agent can be reached, and which one cannot."""

import json

import pytest

from elastic.cli import main
from elastic.cli.etcd_place import members_of, options_of
from elastic.errors import StoreError
from elastic.observe.targets import Agent, targets
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.model import Member, member_to_json
from elastic.rendezvous.options import RendezvousOptions


def agent(exporter, *, address="10.0.0.7", node="a", job_id="j"):
    return Agent(job_id=job_id, node=node, address=address, exporter=exporter)


@pytest.mark.parametrize(
    ("exporter", "address", "place"),
    [
        ("10.0.0.9:9400", "10.0.0.7", "10.0.0.9:9400"),
        ("0.0.0.0:9401", "10.0.0.7", "10.0.0.7:9401"),
        ("[::]:9400", "fd00::7", "[fd00::7]:9400"),
        ("node7.lan:9400", "10.0.0.7", "node7.lan:9400"),
        ("127.0.0.1:9400", "127.0.0.1", "127.0.0.1:9400"),
        ("localhost:9400", "::1", "localhost:9400"),
    ],
)
def test_where_an_agent_is_scraped(exporter, address, place):
    (found,) = targets([agent(exporter, address=address)])
    assert found.to_plain() == {"targets": [place], "labels": {"job_id": "j", "node": "a"}}
    assert not found.problem


def test_an_agent_that_speaks_tls_says_so():
    (found,) = targets([agent("https://0.0.0.0:9401")])
    assert found.to_plain() == {
        "targets": ["10.0.0.7:9401"],
        "labels": {"job_id": "j", "node": "a", "__scheme__": "https"},
    }


@pytest.mark.parametrize("exporter", ["127.0.0.1:9400", "[::1]:9400", "localhost:9400", ""])
def test_an_agent_that_cannot_be_reached_is_told_with_its_remedy(exporter):
    (found,) = targets([agent(exporter)])
    assert "a serves" in found.problem
    assert not exporter or "set metrics.host to 0.0.0.0" in found.problem


def test_the_order_is_the_same_whatever_etcds_is():
    agents = [agent("h:2", node="b"), agent("h:1", node="b"), agent("h:3", node="a"), agent("h:4", job_id="i")]
    assert [each.place for each in targets(agents)] == ["h:4", "h:3", "h:1", "h:2"]
    assert targets(reversed(agents)) == targets(agents)


def put(store, *, job, name, exporter="0.0.0.0:9400"):
    member = Member(
        agent=name, node=name, address="10.0.0.7", slots=1, probe_port=1, store_port=2, lease=0, exporter=exporter
    )
    keys = Keys.of(prefix="/elastic/jobs", job_id=job)
    store.put(keys.member(name), member_to_json(member))
    store.put(keys.world, "{}")
    store.put(keys.name(name), name)


def options(job=""):
    return RendezvousOptions(job_id=job, min_nodes=1, max_nodes=1)


def test_members_of_one_job_or_of_all():
    store = MemoryStore(MemoryServer())
    put(store, job="with/slash", name="a")
    put(store, job="other", name="b")
    found = members_of(store, options=options())
    assert {(job, member.node) for job, member in found} == {("with/slash", "a"), ("other", "b")}
    assert [(job, member.node) for job, member in members_of(store, options=options("with/slash"))] == [
        ("with/slash", "a")
    ]


def test_a_key_of_another_program_is_an_error_that_says_so():
    store = MemoryStore(MemoryServer())
    store.put("/elastic/jobs/j/members/x", "not json")
    with pytest.raises(StoreError, match="another program"):
        members_of(store, options=options())


def test_where_etcd_is_comes_as_torchrun_is_told(monkeypatch):
    from elastic.cli import build_parser

    monkeypatch.setenv("ETCD_ENDPOINTS", "e1:1,e2:2")
    made = options_of(build_parser().parse_args(["targets", "--rdzv-conf", "user=u,prefix=/p"]))
    assert (made.endpoints, made.user, made.prefix) == (("e1:1", "e2:2"), "u", "/p")


@pytest.mark.parametrize(
    "argv",
    [["--rdzv-conf", "user"], ["--rdzv-conf", "usr=x"], ["--interval", "5"], ["--rdzv-endpoint", "a b"], ["more"]],
)
def test_wrong_use(argv, capsys):
    assert main(["targets", *argv]) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("elastic: ")


def test_an_etcd_that_is_away_is_exit_code_75(capsys):
    code = main(["targets", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-conf", "call_timeout_s=0.2"])
    assert code == 75
    assert "etcd did not answer" in capsys.readouterr().err


def test_json_is_what_prometheus_reads():
    groups = json.loads(json.dumps([each.to_plain() for each in targets([agent("10.0.0.9:9400")])]))
    assert all(set(group) == {"targets", "labels"} for group in groups)
    assert all(isinstance(value, str) for group in groups for value in group["labels"].values())
