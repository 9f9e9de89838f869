"""The leak police finds each kind of leak, and lets pass what is none."""

import os
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from elastic.clock import ManualClock
from tests.harness import leaks

ROOT = Path(__file__).parents[2]
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def before():
    return leaks.look()


def found(before):
    return leaks.leaks(before, clock=ManualClock(), grace_s=0.0)


def test_nothing_is_nothing(before):
    assert found(before) == []


def test_a_process(before):
    with subprocess.Popen(SLEEP) as child:
        assert [text.split(":")[0] for text in found(before)] == [f"process {child.pid}"]
        leaks.clean_up(before)
        assert child.wait(timeout=10) == -9
    assert found(before) == []


def test_an_orphan_in_a_session_of_its_own(before):
    script = (
        "import subprocess, sys\n"
        "streams = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}\n"
        "print(subprocess.Popen(sys.argv[1:], start_new_session=True, **streams).pid, flush=True)\n"
    )
    out = subprocess.run([sys.executable, "-c", script, *SLEEP], capture_output=True, check=True, timeout=30)
    pid = int(out.stdout)
    try:
        assert [text.split(":")[0] for text in found(before)] == [f"process {pid}"]
    finally:
        leaks.clean_up(before)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("daemon", "name", "leaks_expected"),
    [(False, "any", 1), (True, "elastic-keeper", 1), (True, "a library's", 0)],
)
def test_a_thread(before, daemon, name, leaks_expected):
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name=name, daemon=daemon)
    thread.start()
    try:
        assert found(before) == [f"thread {name!r}"] * leaks_expected
    finally:
        release.set()
        thread.join()


def test_a_thread_that_is_on_its_way_out_is_waited_for(before):
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()

    class Releasing(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            release.set()
            thread.join()

    assert leaks.leaks(before, clock=Releasing(), grace_s=1.0) == []


def test_the_environment(before, monkeypatch):
    monkeypatch.setenv("ELASTIC_LEAK", "1")
    assert found(before) == ["environment ELASTIC_LEAK: None became '1'"]
    leaks.clean_up(before)
    assert found(before) == []
    assert "ELASTIC_LEAK" not in os.environ


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_shared_memory(before):
    path = Path("/dev/shm") / f"elastic-test-{uuid.uuid4().hex}"
    path.write_bytes(b"x")
    try:
        assert found(before) == [str(path)]
    finally:
        path.unlink()


def test_shared_memory_of_another_run_is_not_ours(before, monkeypatch):
    path = Path("/dev/shm") / f"elastic-test-{uuid.uuid4().hex}"
    script = f"import sys; f = open({str(path)!r}, 'w'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        monkeypatch.setattr(leaks, "_descendants", dict)  # As if the child were someone else's.
        assert found(before) == []
        path.unlink()
        child.communicate()


def test_a_listening_port(before):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert found(before) == [f"listening on port {server.getsockname()[1]}"]


def test_the_test_that_leaked_fails_and_the_next_one_does_not(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import *\n"
        "from tests.conftest import _leak_police\n"
        "from tests.harness import leaks\n"
        "leaks.GRACE_S = 0.1\n"
    )
    (tmp_path / "test_inner.py").write_text(
        "import os, subprocess, sys\n"
        "def test_leaking():\n"
        "    os.environ['ELASTIC_LEAK'] = '1'\n"
        f"    test_leaking.child = subprocess.Popen({SLEEP!r})\n"
        "def test_clean():\n"
        "    assert test_leaking.child.wait(timeout=10) == -9\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60, check=False)
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "left behind: process" in done.stdout
    assert "environment ELASTIC_LEAK: None became '1'" in done.stdout
    assert "ERROR test_inner.py::test_leaking" in done.stdout
