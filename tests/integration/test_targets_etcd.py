"""`elastic targets` and `elastic doctor` against a real etcd."""

import json

import pytest

from elastic.cli import main
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.options import RendezvousOptions
from tests.unit.test_targets import put

pytestmark = pytest.mark.integration


@pytest.fixture
def store(etcd):
    store = EtcdStore(RendezvousOptions(job_id="j", min_nodes=1, max_nodes=1, endpoints=(etcd.endpoint,)))
    yield store
    store.close()


def test_targets_of_a_job(etcd, store, tmp_path, capsys):
    put(store, job="targets", name="a")
    put(store, job="targets", name="b", exporter="127.0.0.1:9400")
    file = tmp_path / "elastic.json"
    assert main(["targets", "--rdzv-endpoint", etcd.endpoint, "--job", "targets", "-o", str(file)]) == 0
    assert json.loads(file.read_text()) == [
        {"targets": ["10.0.0.7:9400"], "labels": {"job_id": "targets", "node": "a"}}
    ]
    assert "b serves its metrics on 127.0.0.1 only" in capsys.readouterr().err


def test_the_doctor_asks_it(etcd, store, capsys):
    put(store, job="doctor", name="other")
    assert main(["doctor", "--json", "--rdzv-endpoint", etcd.endpoint, "--job", "doctor"]) == 0
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert found["etcd"]["level"] == "ok"
    assert f"(etcd {etcd.version()})" in found["etcd"]["found"]
    assert found["clock"]["level"] == "ok"
    assert found["versions"]["level"] == "warning", "the agent in etcd tells of no version at all"
