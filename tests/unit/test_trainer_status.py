"""Kubeflow Trainer is told how far the run is: by its own model of a message, with its token, and never in the way."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from kubeflow_trainer_api.models import TrainerV1alpha1UpdateTrainJobStatusRequest as Request
from prometheus_client.core import GaugeMetricFamily

from elastic.clock import SYSTEM_CLOCK
from elastic.launch import trainer_status
from elastic.launch.trainer_status import (
    CA_CERT,
    TOKEN,
    URL,
    Reading,
    Server,
    TrainerStatus,
    message,
    readings,
    tell_trainer,
)
from tests.harness.manifests import unknown_keys

VALUES = {"elastic_consumed_samples": 400.0, "elastic_step": 20.0, "elastic_loss": 2.5, "elastic_world_size": 4.0}
FIRST = Reading(at_s=10.0, values={"elastic_consumed_samples": 200.0})


def told(first=FIRST, **values):
    return message(first, Reading(at_s=30.0, values=values), goal_samples=1000, wall_s=1_700_000_000.9)


def test_the_message_is_what_trainer_takes():
    body = told(**VALUES)
    assert list(unknown_keys(body, Request)) == []
    status = Request.from_dict(body).trainer_status
    assert (status.progress_percentage, status.estimated_remaining_seconds) == (40, 60)
    assert {each.name: each.value for each in status.metrics} == {"step": "20", "loss": "2.5", "world_size": "4"}
    assert status.last_updated_time.timestamp() == 1_700_000_000


def test_what_is_not_known_is_not_told():
    assert told()["trainerStatus"].keys() == {"lastUpdatedTime", "metrics"}
    standing = told(elastic_consumed_samples=200.0)["trainerStatus"]
    assert standing["progressPercentage"] == 20
    assert "estimatedRemainingSeconds" not in standing
    beyond = told(elastic_consumed_samples=1500.0)["trainerStatus"]
    assert (beyond["progressPercentage"], beyond["estimatedRemainingSeconds"]) == (100, 0)
    assert told(elastic_consumed_samples=999.0)["trainerStatus"]["progressPercentage"] == 99


def test_it_tells_nobody_who_has_not_asked():
    assert Server.of({}) is None
    with ExitStack() as stack:
        tell_trainer({}, source=None, leads=lambda: True, goal_samples=1, clock=SYSTEM_CLOCK, stack=stack)
    assert Server.of({URL: "https://a", CA_CERT: "ca", TOKEN: "t"}) == Server(
        url="https://a", ca_file="ca", token_file="t"
    )


def test_values_are_those_of_the_metrics():
    class Source:
        def collect(self):
            yield GaugeMetricFamily("elastic_step", "x", value=7)
            yield GaugeMetricFamily("elastic_other", "x", value=9)

    assert readings(Source()) == {"elastic_step": 7}


@pytest.fixture
def server():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with self.server.news:
                self.server.heard.append((self.headers["Authorization"], json.loads(body)))
                self.server.news.notify_all()
            self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    made = HTTPServer(("127.0.0.1", 0), Handler)
    made.heard, made.answers, made.news = [], [], threading.Condition()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def wait_heard(server, count):
    with server.news:
        assert server.news.wait_for(lambda: len(server.heard) >= count, timeout=10)


def status_for(server, tmp_path, *, leads=lambda: True):
    (tmp_path / "token").write_text("first\n")
    place = Server(url=f"http://127.0.0.1:{server.server_port}/status", ca_file="", token_file=str(tmp_path / "token"))
    return TrainerStatus(place, read=lambda: VALUES, leads=leads, goal_samples=1000, clock=SYSTEM_CLOCK, pause_s=0.02)


def test_the_leader_tells_with_a_token_that_is_read_anew(server, tmp_path):
    status = status_for(server, tmp_path)
    status.start()
    wait_heard(server, 1)
    (tmp_path / "token").write_text("second")
    wait_heard(server, len(server.heard) + 2)
    status.stop()
    assert server.heard[0][0] == "Bearer first"
    assert server.heard[-1][0] == "Bearer second"
    assert server.heard[-1][1]["trainerStatus"]["progressPercentage"] == 40


def test_who_does_not_lead_says_nothing(server, tmp_path):
    asked = threading.Event()

    def leads():
        asked.set()
        return False

    status = status_for(server, tmp_path, leads=leads)
    status.start()
    assert asked.wait(10)
    status.stop()
    assert server.heard == []


def test_a_server_that_refuses_is_told_later_and_complained_of_once(server, tmp_path, caplog):
    server.answers += [500, 503]
    status = status_for(server, tmp_path)
    status.start()
    wait_heard(server, 4)
    status.stop()
    assert caplog.text.count("was not told how far the run is") == 1


def test_a_server_that_is_away_or_a_token_that_is_missing_holds_nobody_up(server, tmp_path):
    status = status_for(server, tmp_path)
    (tmp_path / "token").unlink()
    status.start()
    status.stop()
    assert server.heard == []


def test_a_server_that_never_comes_to_an_end_ends_no_agent_late(server, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_status, "STOP_S", 0.05)
    status, asked, may_go = status_for(server, tmp_path), threading.Event(), threading.Event()

    def hangs(_server, _body):
        asked.set()
        assert may_go.wait(10)

    monkeypatch.setattr(trainer_status, "post", hangs)
    status.start()
    assert asked.wait(10)
    status.stop()
    assert [thread for thread in threading.enumerate() if thread.name == "elastic-trainer-status"]
    may_go.set()
    monkeypatch.undo()
    status.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "elastic-trainer-status"]
