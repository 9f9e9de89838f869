"""The exporter, over real HTTP: what it serves, where it listens, and that it leaves nothing behind."""

import socket
import threading
from contextlib import closing
from http.client import HTTPConnection

import pytest

from elastic import events
from elastic.errors import UsageError
from elastic.metrics import exporter as module
from elastic.metrics.exporter import Exporter
from elastic.metrics.fold import Metrics
from tests.harness.scrape import parsed

STEP = events.StepCommitted(
    iteration=3,
    start=48,
    stop=72,
    ranges=((48, 72),),
    step_samples=24,
    step_digest=1,
    run_digest=2**32 - 1,
    loss=2.5,
    world_size=1,
    seconds=0.3,
)

STARTED = events.AgentStarted(job_id="j", agent="x", endpoint="e", exporter="", version="1", torch_version="2")


@pytest.fixture
def metrics():
    found = Metrics()
    found.apply(events.Record(time_s=100.0, node="a", rank=0, generation=1, event=STEP))
    return found


@pytest.fixture
def address(metrics):
    exporter = Exporter(metrics, host="127.0.0.1", port=0)
    yield exporter.start()
    exporter.stop()


def request(address, path, *, method="GET", headers=None):
    with closing(HTTPConnection(address, timeout=5)) as connection:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response, response.read().decode()


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_scrape_is_what_prometheus_reads(address, openmetrics):
    accept = "application/openmetrics-text; version=1.0.0" if openmetrics else "text/plain"
    response, body = request(address, "/metrics", headers={"Accept": accept})
    assert response.status == 200
    assert response.headers["Content-Type"].startswith(accept.partition(";")[0])
    found = parsed(body, openmetrics=openmetrics)
    assert found["elastic_step",] == 3
    assert found["elastic_samples_total",] == 24
    assert found["elastic_data_digest",] == 2**32 - 1
    assert found["elastic_step_duration_seconds_bucket", ("le", "0.5")] == 1


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=x.y", "application/openmetrics-text;version=;,"])
def test_any_accept_header_gets_an_answer(address, accept):
    response, body = request(address, "/metrics?name=x", headers={"Accept": accept})
    assert (response.status, "elastic_step 3.0" in body) == (200, True)


def test_liveness_and_readiness(address, metrics):
    assert request(address, "/livez")[0].status == 200
    for path in ("/readyz", "/startupz"):
        response, body = request(address, path)
        assert (response.status, body) == (503, "no agent has started here\n")
    metrics.apply(events.Record(time_s=100.5, node="a", rank=None, generation=0, event=STARTED))
    awaited = events.NodesAwaited(here=1, needed=2, reason="nodes here: 1 of at least 2")
    metrics.apply(events.Record(time_s=100.6, node="a", rank=None, generation=0, event=awaited))
    # Whoever waits for peers, for however long, is up and alive; it only takes no part yet.
    assert [request(address, path)[0].status for path in ("/livez", "/startupz", "/readyz")] == [200, 200, 503]
    formed = events.WorldFormed(
        world_size=1,
        nodes=("a",),
        node_count=1,
        node_rank=0,
        cause=events.Cause.START,
        reason="r",
        seconds=0.1,
        leader=True,
    )
    metrics.apply(events.Record(time_s=101.0, node="a", rank=None, generation=2, event=formed))
    response, body = request(address, "/readyz")
    assert (response.status, body) == (200, "member of generation 2\n")
    # Nor does a long save change anything: no step, and no word of a worker, is needed for any of the three.
    assert [request(address, path)[0].status for path in ("/livez", "/startupz", "/readyz")] == [200, 200, 200]


def test_other_paths_and_methods_are_refused(address):
    response, body = request(address, "/")
    assert (response.status, body) == (404, "there are /metrics, /livez, /readyz and /startupz\n")
    for method in ("POST", "PUT", "DELETE", "TRACE", "NONSENSE"):
        response, _ = request(address, "/metrics", method=method)
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
    response, body = request(address, "/metrics", method="HEAD")
    assert (response.status, body) == (200, "")
    assert int(response.headers["Content-Length"]) > 1000


def test_noise_on_the_port_does_no_harm(address):
    host, port = address.split(":")
    for noise in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 70000):
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(noise)
            client.shutdown(socket.SHUT_WR)
            client.settimeout(5)
            try:
                while client.recv(65536):
                    pass
            except ConnectionResetError:
                pass
    assert request(address, "/livez")[0].status == 200


def test_the_next_free_port_is_taken(metrics):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        exporter = Exporter(metrics, host="127.0.0.1", port=port)
        address = exporter.start()
        assert port < int(address.split(":")[1]) < port + module.PORTS_TRIED
        assert request(address, "/livez")[0].status == 200
        exporter.stop()


def test_no_free_port_is_one_clear_message(metrics, monkeypatch):
    monkeypatch.setattr(module, "PORTS_TRIED", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        exporter = Exporter(metrics, host="127.0.0.1", port=taken.getsockname()[1])
        with pytest.raises(UsageError, match=r"metrics\.port \d+: no free port from"):
            exporter.start()


# 192.0.2.1 is of a range kept for documentation: no machine has it.
@pytest.mark.parametrize("host", ["192.0.2.1", "not an address", "a" * 70 + ".invalid"])
def test_a_host_that_is_not_ours_is_one_clear_message(metrics, host):
    with pytest.raises(UsageError, match=r"metrics\.host"):
        Exporter(metrics, host=host, port=0).start()


def test_ipv6(metrics):
    exporter = Exporter(metrics, host="::1", port=0)
    try:
        address = exporter.start()
    except UsageError:
        assert not socket.has_ipv6 or not _has_ipv6_loopback()
        return
    assert address.startswith("[::1]:")
    assert request(address, "/livez")[0].status == 200
    exporter.stop()


def _has_ipv6_loopback() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_stopping_cuts_clients_that_say_nothing_and_leaves_no_thread(metrics):
    before = set(threading.enumerate())
    exporter = Exporter(metrics, host="127.0.0.1", port=0)
    host, port = exporter.start().split(":")
    with socket.create_connection((host, int(port)), timeout=5) as silent:
        assert request(f"{host}:{port}", "/livez")[0].status == 200  # So the silent one was accepted before.
        exporter.stop()
        assert silent.recv(1) == b""
    assert set(threading.enumerate()) == before
    with socket.create_server((host, int(port))):  # The port is free again.
        pass
    exporter.stop()
    assert exporter.start()
    exporter.stop()
