"""`elastic doctor` against a real etcd with TLS and client certificates: what is right, whom it does not trust, who is
of another version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic.cli import main
from elastic.local.etcd import EtcdServer
from elastic.rendezvous.coordinator import AgentIdentity, Coordinator
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.options import RendezvousOptions
from tests.harness.agents import FakeStores
from tests.harness.certificates import Authority

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def findings(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, tuple[str, str, str]]:
    """What the doctor found, by check: level, words, remedy."""
    main(["doctor", "--json", *argv])
    told = json.loads(capsys.readouterr().out)["findings"]
    return {each["check"]: (each["level"], each["found"], each["remedy"]) for each in told}


def test_tls_trust_and_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path)
    client = authority.sign("job", client=True)
    with EtcdServer(tmp_path / "etcd", tls=authority.server(client_auth=True)) as server:
        where = f"--rdzv-endpoint=https://{server.endpoint}"
        conf = f"cacert={authority.ca_file},cert={client.cert_file},key={client.key_file}"
        found = findings(capsys, where, f"--rdzv-conf={conf}")
        assert [found[check][0] for check in ("etcd", "etcd TLS", "clock", "versions")] == ["ok", "ok", "ok", "skipped"]
        strange = findings(capsys, where, "--rdzv-conf=connect_timeout_s=2,call_timeout_s=2")
        assert strange["etcd"][0] == "FAILURE"
        assert strange["etcd"][2], "with its remedy"
        options = RendezvousOptions(
            job_id="j",
            min_nodes=1,
            max_nodes=1,
            endpoints=(server.endpoint,),
            secure=True,
            ca_file=str(authority.ca_file),
            cert_file=str(client.cert_file),
            key_file=str(client.key_file),
        )
        store = EtcdStore(options)
        identity = AgentIdentity(agent="a", node="old", address="127.0.0.1", fingerprint="elastic 0.0.1")
        agent = Coordinator(store, options=options, identity=identity, stores=FakeStores())
        agent.start()
        try:
            level, words, remedy = findings(capsys, where, f"--rdzv-conf={conf}")["versions"]
        finally:
            agent.stop()
            store.close()
    assert (level, "old" in words, bool(remedy)) == ("warning", True, True), words
