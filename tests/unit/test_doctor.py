"""The doctor: each judgement at its limits, each fact as it is measured, nothing left behind."""

import json
import threading
import tomllib
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from elastic.cli import main
from elastic.clock import SYSTEM_CLOCK
from elastic.observe import health, measuring
from elastic.observe.health import DiskFact, Level, StoreFact
from elastic.rendezvous.options import RendezvousOptions

ROOT = Path(__file__).parents[2]
GOOD_DISK = DiskFact(
    path="/p", fsyncs_s=(0.01,) * 3, write_bytes_per_s=1e8, rename_refuses=True, free_bytes=90, total_bytes=100
)


def store(*latencies_s, endpoint="e:2379", **more):
    return StoreFact(endpoints=(endpoint,), secure=False, latencies_s=latencies_s, **more)


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (health.judge_store(store(0.001, 0.002, 0.09)), Level.GOOD),
        (health.judge_store(store(0.2, 0.3, 0.4)), Level.WARNING),
        (health.judge_store(store(0.001, 0.001, 1.2)), Level.FAILURE),
        (health.judge_store(store(problem="nobody answers")), Level.FAILURE),
        (health.judge_secrecy(store(0.1)), Level.WARNING),
        (health.judge_secrecy(store(0.1, endpoint="127.0.0.1:2379")), Level.GOOD),
        (health.judge_secrecy(StoreFact(endpoints=("e:1",), secure=True)), Level.GOOD),
        (health.judge_clock(1.4), Level.GOOD),
        (health.judge_clock(-30.0), Level.WARNING),
        (health.judge_clock(None), Level.SKIPPED),
        (health.judge_shared_memory(64 << 20, free_bytes=64 << 20), Level.WARNING),
        (health.judge_shared_memory(8 << 30, free_bytes=1 << 20), Level.WARNING),
        (health.judge_shared_memory(8 << 30, free_bytes=4 << 30), Level.GOOD),
        (health.judge_shared_memory(None), Level.FAILURE),
        (health.judge_limit("files", 1024, infinity=-1), Level.WARNING),
        (health.judge_limit("files", -1, infinity=-1), Level.GOOD),
        (health.judge_limit("processes", 4096, infinity=-1), Level.GOOD),
        (health.judge_user(1000, None), Level.WARNING),
        (health.judge_user(1000, "ann"), Level.GOOD),
        (health.judge_port("h", wanted=9400, free=9400), Level.GOOD),
        (health.judge_port("h", wanted=9400, free=9403), Level.GOOD),
        (health.judge_port("h", wanted=9400, free=None), Level.FAILURE),
        (health.judge_package("torch", found="2.13.0+cpu", least="2.13"), Level.GOOD),
        (health.judge_package("torch", found="2.9.1", least="2.13"), Level.FAILURE),
        (health.judge_package("torch", found="3.0rc1", least="2.13"), Level.GOOD),
        (health.judge_package("torch", found=None, least="2.13"), Level.FAILURE),
        (health.judge_rival("0.12.0"), Level.FAILURE),
        (health.judge_plugin(["elastic.rendezvous.plugin:register"]), Level.GOOD),
        (health.judge_plugin(["other:register"]), Level.FAILURE),
        (health.judge_likeness({"a": "x", "b": "x"}, here="x"), Level.GOOD),
        (health.judge_likeness({"a": "x", "b": "y"}, here="x"), Level.WARNING),
        (health.judge_likeness({}, here="x"), Level.SKIPPED),
    ],
)
def test_judgements(finding, level):
    assert finding.level is level, finding
    assert finding.found
    assert bool(finding.remedy) == (level in (Level.WARNING, Level.FAILURE)), "every flaw has a remedy, nothing else"


def test_the_clock_is_told_by_how_far_and_which_way():
    assert health.judge_clock(3600.0).found == "3600 s behind etcd's"
    assert health.judge_clock(-30.0).found == "30 s ahead of etcd's"


@pytest.mark.parametrize(
    ("changed", "levels"),
    [
        ({}, ["ok", "ok", "ok"]),
        ({"problem": "Read-only file system"}, ["FAILURE"]),
        ({"free_bytes": 4}, ["warning", "ok", "ok"]),
        ({"rename_refuses": False}, ["ok", "FAILURE", "ok"]),
        ({"fsyncs_s": (0.01, 0.2, 0.3)}, ["ok", "ok", "warning"]),
        ({"write_bytes_per_s": 1e7}, ["ok", "ok", "warning"]),
    ],
)
def test_judgements_of_a_disk(changed, levels):
    findings = health.judge_disk(DiskFact(**(vars(GOOD_DISK) | changed)))
    assert [each.level for each in findings] == levels
    assert all(bool(each.remedy) == (each.level != "ok") for each in findings)


def test_a_directory_is_tried_and_left_as_it_was(tmp_path):
    (tmp_path / "mine").write_text("x")
    findings = measuring.save_path(str(tmp_path), clock=SYSTEM_CLOCK)
    assert [each.check for each in findings] == ["save_path", "rename", "fsync"]
    assert Level.FAILURE not in [each.level for each in findings]
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_path_that_is_not_there_is_not_made(tmp_path):
    findings = measuring.save_path(str(tmp_path / "new" / "run"), clock=SYSTEM_CLOCK)
    assert findings[0].found.startswith(f"{tmp_path} can be written")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_used_and_one_that_is_not_tried(tmp_path):
    (tmp_path / "file").write_text("x")
    (finding,) = measuring.save_path(str(tmp_path / "file" / "run"), clock=SYSTEM_CLOCK)
    assert (finding.level, "Not a directory" in finding.found) == (Level.FAILURE, True)
    (finding,) = measuring.save_path("s3://bucket/run", clock=SYSTEM_CLOCK)
    assert finding.level is Level.SKIPPED


@pytest.fixture
def wrong_clock():
    """A server that answers as etcd's HTTP side does, an hour ahead; nothing else of etcd."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            body = b'{"etcdserver":"3.6.1","etcdcluster":"3.6.0"}'
            self.send_response_only(200)
            self.send_header("Date", formatdate(SYSTEM_CLOCK.wall_s() + 3600, usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_clock_that_is_wrong_is_found(wrong_clock):
    options = RendezvousOptions(job_id="", min_nodes=1, max_nodes=1, endpoints=("127.0.0.1:1", wrong_clock))
    told = measuring._ask_http(options, clock=SYSTEM_CLOCK)
    assert told.version == "3.6.1"
    assert told.offset_s == pytest.approx(3600, abs=1.5)
    assert health.judge_clock(told.offset_s).level is Level.WARNING


def test_what_is_needed_is_what_the_package_asks_for():
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {name: f"{name}>={least}" for name, least in measuring.NEEDED.items()}.items() <= {
        item.partition(">=")[0]: item for item in asked
    }.items()


def test_the_command(capsys, tmp_path):
    code = main(["doctor", "--no-etcd", "--json", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    checks = [each["check"] for each in found["findings"]]
    assert {"plug-in", "package torch", "/dev/shm", "ulimit files", "user", "exporter port", "rename"} <= set(checks)
    assert "etcd" not in checks
    assert (code == 0) == found["fit"]


def test_an_etcd_that_is_away_is_a_failure_with_its_remedy(capsys):
    code = main(["doctor", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-conf", "call_timeout_s=0.2"])
    out = capsys.readouterr().out
    assert code == 1
    assert "FAILURE  etcd  " in out
    assert "-> start etcd there, or name it with --rdzv-endpoint" in out


@pytest.mark.parametrize("argv", [["--metrics-port", "0"], ["a", "b"], ["--rdzv-conf", "x"]])
def test_wrong_use(argv, capsys):
    assert main(["doctor", *argv]) == 64
    assert capsys.readouterr().out == ""


def test_the_page_lists_every_check():
    page = (ROOT / "docs" / "observe.md").read_text()
    for name in ("plug-in", "/dev/shm", "user", "exporter port", "etcd", "etcd TLS", "clock", "versions", "fsync"):
        assert f"| {name} |" in page
