"""Workers forked under torchrun: its options for output and errors hold as with new Pythons, and events say how."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from elastic.events import Notice, Recovered, StepCommitted, WorkerStarted, read_records
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.node import children
from tests.harness.survival import cluster, leave_all

pytestmark = pytest.mark.integration

OUTPUT = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS")
    print("said", sys.argv[1:], [os.environ[name] for name in names])
    print("complained", os.environ["LOCAL_RANK"], file=sys.stderr)
    if "fail" in sys.argv and os.environ["LOCAL_RANK"] == "1":
        raise RuntimeError("on purpose")

if __name__ == "__main__":
    main()
"""


def run_once(directory, etcd, *, ready, options=(), arguments=(), script=None):
    """One node with two workers, to its end: exit code, its lines and records, and what lies in torchrun's log-dir."""
    directory.mkdir()
    if script is None:
        script = directory / "program.py"
        script.write_text(OUTPUT)
    environ = {
        "ELASTIC__LAUNCH__READY_WORKERS": str(ready).lower(),
        "ELASTIC__METRICS__PORT": "19650",
        "ELASTIC__RENDEZVOUS__FIRST_WAIT_S": "0",
    }
    spec = ClusterSpec(
        directory=directory,
        etcd_endpoint=etcd.endpoint,
        environ=environ,
        nnodes="1:1",
        script=str(script),
        options=("--nproc-per-node=2", f"--log-dir={directory / 'logs'}", *options),
        arguments=arguments,
    )
    with Cluster(spec) as run:
        node = run.start("a")
        exit_code = run.wait_exit("a", limit_s=90)
        text = node.log.read_text()
    found = {}
    for path in sorted((directory / "logs").rglob("*")):
        if path.is_file():
            # Below a directory that torch names by chance.
            found["/".join(path.parts[-3:])] = path.read_text().replace(str(directory), "HERE")
    return exit_code, text, read_records(run.save_path / "events"), found


def paths_of(records):
    return {r.event.path for r in records if isinstance(r.event, WorkerStarted)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [("--redirects=3", "--tee=3"), ("--redirects=0:1,1:2",)])
def test_output_goes_where_torchrun_was_told(options, tmp_path, etcd):
    seen = [
        run_once(tmp_path / str(ready), etcd, ready=ready, options=options, arguments=("x", "${local_rank}"))
        for ready in (True, False)
    ]
    (forked_code, forked_text, forked_records, forked), (_, cold_text, cold_records, cold) = seen
    assert forked_code == 0, forked_text
    assert (paths_of(forked_records), paths_of(cold_records)) == ({"refork"}, {"reexec"})
    assert forked == cold
    assert any(forked.values())
    shown = [sorted(re.findall(r"^.*(?:said|complained).*$", text, re.MULTILINE)) for text in (forked_text, cold_text)]
    assert shown[0] == shown[1]
    assert len(shown[0]) == (4 if "--tee=3" in options else 2)


@pytest.mark.exhaustive
def test_an_uncaught_exception(tmp_path, etcd):
    """Error file, traceback, exit code and reports are those of a new Python."""
    seen = [
        run_once(tmp_path / str(ready), etcd, ready=ready, options=("--redirects=3",), arguments=("fail",))
        for ready in (True, False)
    ]
    errors = []
    for _, text, _, found in seen:
        assert "ended with exit code 1" in text
        (name,) = [name for name in found if name.endswith("1/error.json") and "attempt" in name][:1]
        told = json.loads(found.pop(name))
        assert told["message"]["message"] == "RuntimeError: on purpose"
        errors.append(told["message"]["extraInfo"]["py_callstack"].replace("True", "…").replace("False", "…"))
        assert found["attempt_0/1/stderr.log"].rstrip().endswith("RuntimeError: on purpose")
    assert errors[0] == errors[1]
    assert seen[0][0] == seen[1][0]


@pytest.mark.exhaustive
def test_a_module_and_another_program(tmp_path, etcd):
    exit_code, text, records, _ = run_once(
        tmp_path / "module", etcd, ready=True, options=("-m",), script="json.tool", arguments=("--help",)
    )
    assert exit_code == 0, text
    assert paths_of(records) == {"refork"}
    exit_code, text, records, _ = run_once(
        tmp_path / "program", etcd, ready=True, options=("--no-python",), script="true"
    )
    assert exit_code == 0, text
    assert paths_of(records) == {"reexec"}
    assert not [r for r in records if isinstance(r.event, Notice)]


def test_a_killed_worker_is_forked_again_and_a_dead_zygote_replaced(tmp_path, etcd):
    with cluster(tmp_path, etcd.endpoint, steps=100_000) as run:
        node = run.start("a", ELASTIC__RENDEZVOUS__FIRST_WAIT_S="0")
        run.wait_step(3, world_size=1)
        (worker,) = node.workers()
        (zygote,) = [pid for pid in children(node.pid) if Path(f"/proc/{pid}/comm").read_text() == "elastic-zygote\n"]
        os.kill(zygote, signal.SIGKILL)
        run.wait_step(10, world_size=1)
        assert node.workers() == [worker]
        os.kill(worker, signal.SIGKILL)
        back = run.wait(lambda r: isinstance(r.event, Recovered), what="the recovery", limit_s=60)
        assert back.event.path in ("refork", "reexec"), "the next zygote may not be ready yet"
        generation = back.generation
        since = run.now()
        run.wait(
            lambda r: isinstance(r.event, StepCommitted) and r.generation == generation,
            what="a step of it",
            limit_s=60,
            since=since,
        )
        os.kill(node.workers()[0], signal.SIGKILL)
        again = run.wait(
            lambda r: isinstance(r.event, Recovered), what="the next recovery", limit_s=60, since=run.now()
        )
        assert again.event.path == "refork"
        leave_all(run)


@pytest.mark.exhaustive
def test_a_job_that_cannot_be_forked_trains_all_the_same(tmp_path, etcd):
    (tmp_path / "threaded.py").write_text(
        "import threading\nfrom tests.harness.small_job import job\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    more = {"ELASTIC__JOB__TARGET": "threaded:job", "PYTHONPATH": str(tmp_path)}
    with cluster(tmp_path, etcd.endpoint, steps=5, **more) as run:
        run.start("a", ELASTIC__RENDEZVOUS__FIRST_WAIT_S="0")
        assert run.wait_exit("a", limit_s=60) == 0
    records = read_records(run.save_path / "events")
    assert paths_of(records) == {"reexec"}
    (told,) = [r.event.text for r in records if isinstance(r.event, Notice) and "new Pythons" in r.event.text]
    assert "threaded: it starts 1 thread" in told


@pytest.mark.exhaustive
def test_a_broken_job_is_reported_by_the_worker_itself(tmp_path, etcd):
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    more = {"ELASTIC__JOB__TARGET": "broken:job", "PYTHONPATH": str(tmp_path)}
    with cluster(tmp_path, etcd.endpoint, steps=5, **more) as run:
        node = run.start("a", ELASTIC__RENDEZVOUS__FIRST_WAIT_S="0")
        assert run.wait_exit("a", limit_s=60) == 64
        last = node.log.read_text().rstrip().splitlines()[-1]
    assert "imports 'nothing_of_that_name', which is not installed here" in last
