"""A run with kills, seen by a real Prometheus: targets, rules, every panel of the dashboard, an alert that arrives."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.events import Recovered, StepCommitted, WorldFormed
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from elastic.local.node import ROOT
from tests.harness.certificates import Authority
from tests.harness.prometheus import Alertmanager, Pager, Prometheus, wait
from tests.harness.survival import cluster, leave_all
from tests.unit.test_dashboard import EXPRESSIONS
from tests.unit.test_rules import RULES

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


@contextlib.contextmanager
def discovery(etcd: EtcdServer, file: Path) -> Iterator[None]:
    """`elastic targets`, writing the file again and again."""
    command = [sys.executable, "-m", "elastic", "targets", "--rdzv-endpoint", etcd.endpoint]
    process = subprocess.Popen([*command, "-o", str(file), "--interval", "1"], cwd=ROOT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


@contextlib.contextmanager
def watched(directory: Path, etcd: EtcdServer) -> Iterator[tuple[Prometheus, Pager]]:
    with contextlib.ExitStack() as stack:
        targets = directory / "targets.json"
        stack.enter_context(discovery(etcd, targets))
        pager = Pager()
        stack.callback(pager.close)
        alertmanager = Alertmanager(directory, pager=pager)
        stack.callback(alertmanager.close)
        prometheus = Prometheus(directory, targets=targets, rules=RULES / "rules.yaml", alertmanager=alertmanager)
        stack.callback(prometheus.close)
        yield prometheus, pager


def reached(run: Cluster) -> int:
    return max(r.event.iteration for r in run.follower.records if isinstance(r.event, StepCommitted))


def leader(run: Cluster) -> str:
    run.follower.read()
    return [r.node for r in run.follower.records if isinstance(r.event, WorldFormed) and r.event.leader][-1]


def come_and_go(run: Cluster, name: str) -> None:
    """A node is killed, and comes back: two changes of the membership."""
    at = run.now()
    run.nodes[name].kill()
    run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=at)
    at = run.now()
    run.start(name)
    run.wait_step(1, world_size=3, since=at)
    run.wait_step(reached(run) + 30, since=at)


def test_a_run_with_kills(tmp_path: Path, etcd: EtcdServer) -> None:
    with watched(tmp_path, etcd) as (prometheus, pager), cluster(tmp_path, etcd.endpoint, steps=1_000_000) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(60, world_size=3)
        began_s = min(r.time_s for r in run.follower.records)
        wait(lambda: prometheus.number('sum(up{job="elastic"})') == 3, what="three targets")
        wait(lambda: prometheus.number("sum(elastic_steps_committed_total)") is not None, what="the leader's scrape")
        counted = prometheus.number("sum(elastic_steps_committed_total)")
        first = leader(run)
        come_and_go(run, next(name for name in run.nodes if name != first))
        come_and_go(run, first)
        second = leader(run)
        assert second != first
        come_and_go(run, next(name for name in run.nodes if name not in (first, second)))
        at = run.now()
        (worker,) = run.nodes[second].workers()
        os.kill(worker, signal.SIGKILL)
        run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=at)
        run.wait_step(reached(run) + 60, since=at)

        wait(lambda: prometheus.number("sum(increase(elastic_rescales_total[10m]))") >= 6, what="all was scraped")
        assert counted is not None
        wait(lambda: prometheus.number("count(elastic_steps_committed_total)") == 1, what="one leader's series")
        assert (prometheus.number("sum(elastic_steps_committed_total)") or 0) > counted, "the next leader goes on"
        _counted_once(prometheus, began_s)
        _rules_are_well(prometheus)
        _no_panel_is_empty(prometheus)
        wait(lambda: any(a["labels"]["alertname"] == "ElasticRescaleStorm" for a in pager.alerts), what="the page")
        told = next(a for a in pager.alerts if a["labels"]["alertname"] == "ElasticRescaleStorm")
        assert (told["status"], told["labels"]["job"], told["labels"]["severity"]) == ("firing", "elastic", "ticket")
        assert "The membership changed" in told["annotations"]["summary"]
        leave_all(run)


def test_a_prometheus_with_certificate_and_password_reads_an_agent_that_demands_both(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """Of settings and secrets nothing comes into what is scraped."""
    authority = Authority(tmp_path / "authority")
    own, client = authority.sign("agent"), authority.sign("prometheus", client=True)
    users = tmp_path / "users"
    users.write_text("prometheus:a-secret-word\n")
    users.chmod(0o600)
    wanted = {
        "ELASTIC__METRICS__TLS_CERT": str(own.cert_file),
        "ELASTIC__METRICS__TLS_KEY": str(own.key_file),
        "ELASTIC__METRICS__CLIENT_CA": str(authority.ca_file),
        "ELASTIC__METRICS__USERS_FILE": str(users),
        "ELASTIC__RENDEZVOUS__FIRST_WAIT_S": "0",
    }
    tls = {"ca_file": authority.ca_file, "cert_file": client.cert_file, "key_file": client.key_file}
    access = {
        "basic_auth": {"username": "prometheus", "password": "a-secret-word"},
        "tls_config": {name: str(file) for name, file in tls.items()},
    }
    targets = tmp_path / "targets.json"
    with cluster(tmp_path, etcd.endpoint, steps=1_000_000, **wanted) as run, discovery(etcd, targets):
        run.start("a")
        run.wait_step(2)
        with contextlib.closing(Prometheus(tmp_path, targets=targets, access=access)) as prometheus:
            wait(lambda: prometheus.number('sum(up{job="elastic"})') == 1, what="a scrape")
            found = str(prometheus.query('{__name__=~"elastic_.+"}'))
        assert "elastic_steps_committed_total" in found
        assert not [word for word in ("a-secret-word", str(users), str(tmp_path / "checkpoint")) if word in found]
        leave_all(run)


def _counted_once(prometheus: Prometheus, began_s: float) -> None:
    """A sum over agents is the job's own value, and time adds up to what passed."""
    assert prometheus.number("count(elastic_steps_committed_total)") == 1
    for astray in ("replayed", "missed", "changed"):
        assert prometheus.number(f"sum(elastic_samples_{astray}_total)") == 0
    summed = prometheus.number("sum(elastic_time_seconds_total)")
    assert summed == pytest.approx(time.time() - began_s, abs=5.0)
    # Of a series that began within the window, as the next leader's does, there is a rate of a part of it only.
    rate = "sum(rate(elastic_time_seconds_total[30s]))"
    wait(lambda: prometheus.number(rate) == pytest.approx(1.0, abs=0.05), what="a rate of one second a second")


def _rules_are_well(prometheus: Prometheus) -> None:
    found = prometheus.rules()
    assert len(found) > 20
    assert not [rule for rule in found if rule["health"] != "ok" or rule.get("lastError")]
    for rule in found:
        if rule["type"] == "recording":
            assert prometheus.query(rule["name"]), f"{rule['name']} is empty"


def _no_panel_is_empty(prometheus: Prometheus) -> None:
    empty = []
    for title, expression in EXPRESSIONS:
        asked = expression.replace("$__rate_interval", "1m").replace("$job", "elastic").replace(":15s]", ":1s]")
        if all(series["value"][1] == "NaN" for series in prometheus.query(asked)):
            empty.append(f"{title}: {asked}")
    assert not empty
