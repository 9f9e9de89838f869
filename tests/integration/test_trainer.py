"""A node under Kubeflow Trainer: it tells the status server that the variables name, from its start to its end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from elastic.launch.trainer_status import TOKEN, URL
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


class Handler(BaseHTTPRequestHandler):
    """Keeps what it is told."""

    heard: list[tuple[str, dict[str, object]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heard.append((self.headers["Authorization"], body["trainerStatus"]))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    made = HTTPServer(("127.0.0.1", 0), Handler)
    made.heard = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_trainer_hears_of_the_run_until_it_is_finished(tmp_path: Path, etcd: EtcdServer, server: HTTPServer) -> None:
    (tmp_path / "token").write_text("secret")
    environ = {URL: f"http://127.0.0.1:{server.server_port}/status", TOKEN: str(tmp_path / "token")}
    with cluster(tmp_path, etcd.endpoint, steps=30) as run:
        for name in ("a", "b"):
            run.start(name, **environ)
        run.wait_step(10)
        assert [run.wait_exit(name) for name in ("a", "b")] == [0, 0]
    heard = server.heard  # type: ignore[attr-defined]
    assert heard
    assert {authorization for authorization, _ in heard} == {"Bearer secret"}
    assert heard[-1][1]["progressPercentage"] == 100
    assert {each["name"]: each["value"] for each in heard[-1][1]["metrics"]}["step"] == "30"
