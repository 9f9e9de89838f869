"""The zygote: who is whose child, who dies with whom, what it refuses to fork, and what it gives to a fork."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.launch import ready as module
from elastic.launch.processes import WakePipe, WorkerProcesses
from elastic.lifetime import AGENT_PID
from elastic.local.node import children
from tests.harness.both_ways import LIMIT_S, BothWays, Pipes, Ready
from tests.harness.until import ended, until

pytestmark = pytest.mark.integration

ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(scope="module")
def shared():
    made = Ready()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def ways(shared, tmp_path):
    made = BothWays(shared, tmp_path)
    yield made
    assert all(worker.returncode is not None for worker in made.started), "one still runs"


@pytest.fixture
def own(tmp_path):
    """Makes a zygote with a job's module; all are ended with the test."""
    made = []

    def start(text=None, **more):
        if text is not None:
            (tmp_path / "the_job.py").write_text(text)
            more["PYTHONPATH"] = str(tmp_path)
        made.append(Ready("the_job" if text is not None else "", **more))
        made[-1].start()
        return BothWays(made[-1], tmp_path)

    yield start
    for each in made:
        each.stop()


def test_a_start_lasts_until_there_is_a_zygote_however_slow_the_machine():
    launching, may_go = threading.Event(), threading.Event()

    class Slow(Ready):
        def _launch(self):
            launching.set()
            assert may_go.wait(LIMIT_S)
            return super()._launch()

    made = Slow()
    starting = threading.Thread(target=made.start)
    starting.start()
    try:
        assert launching.wait(LIMIT_S)
        starting.join(1.5)  # an outcome that must not come is the only one that takes a while to be seen
        assert starting.is_alive()
    finally:
        may_go.set()
        starting.join()
        assert made.zygote
        made.stop()


WAIT = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def pipes():
    made = Pipes()
    yield made
    made.close()


def test_the_worker_is_ours_and_the_zygote_is_clean(ways):
    script = "import sys, os; print(os.getppid(), *[m for m in sys.modules if m.split('.')[0] in ('grpc', 'etcd3')])"
    assert ways.forked(ways.script(script)).out == f"{os.getpid()}\n"
    zygote = Path(f"/proc/{ways.ready.zygote}")
    assert len(os.listdir(zygote / "task")) == 1
    assert children(ways.ready.zygote) == [], "what it forked is not left to it"
    assert (zygote / "comm").read_text() == "elastic-zygote\n"
    assert ways.ready.notices == []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):  # as a batch system sends them to all
        os.kill(ways.ready.zygote, number)
    assert ways.forked(ways.script("import signal; signal.raise_signal(15)")).exit_code == -signal.SIGTERM
    assert ways.ready.zygote == int(zygote.name)


@pytest.mark.exhaustive
def test_standard_files_are_the_agents_where_torchrun_redirects_nothing(ways):
    ways.fork(ways.script("import os; print(os.readlink('/proc/self/fd/1'))"), files=[0, 2, 2]).wait(LIMIT_S)
    ways.fork(ways.script("import os, sys; sys.exit(os.fstat(2) != os.fstat(1))"), files=[0, 2, 2]).wait(LIMIT_S)
    assert [worker.returncode for worker in ways.started] == [0, 0]


@pytest.mark.exhaustive
def test_a_worker_outlives_the_zygote_and_the_next_one_comes_from_another(own, pipes):
    ways = own()
    worker = ways.fork(ways.script(WAIT), files=pipes.files)
    pipes.started()
    assert pipes.out.readline() == "up\n"
    first = ways.ready.zygote
    os.kill(first, signal.SIGKILL)
    until(lambda: ways.ready._zygote is not None and ways.ready.zygote != first, what="another zygote")
    assert ways.forked(ways.script("print('next')")).out == "next\n"
    assert worker.poll() is None
    os.close(pipes.write)
    assert worker.wait(LIMIT_S) == 0
    pipes.write = os.open("/dev/null", os.O_RDONLY)


@pytest.mark.exhaustive
def test_a_worker_outlives_the_thread_that_asked_for_it(ways, pipes):
    """The kernel's death signal follows the parent's thread: it must be the one that lasts."""
    environ = {**ways.environ, AGENT_PID: str(os.getpid())}
    command = ways.script(WAIT)
    asking = threading.Thread(target=lambda: ways.fork(command, environ, pipes.files))
    asking.start()
    asking.join()
    pipes.started()
    assert pipes.out.readline() == "up\n"
    (worker,) = ways.started
    assert worker.poll() is None
    os.close(pipes.write)
    assert worker.wait(LIMIT_S) == 0
    pipes.write = os.open("/dev/null", os.O_RDONLY)


AGENT = """
import os, sys
sys.path.insert(0, {root!r})
from elastic.clock import SYSTEM_CLOCK
from elastic.launch.ready import ReadyWorkers
ready = ReadyWorkers(module="", command_bytes=100, environ=os.environ, clock=SYSTEM_CLOCK)
ready.start()
environ = {{**os.environ, "ELASTIC_AGENT_PID": str(os.getpid())}}
worker = ready.fork([sys.executable, "-u", sys.argv[1]], environ, [0, 1, 2])
os.write(1, f"worker {{worker.pid}} {{ready._zygote.process.pid}}\\n".encode())
sys.stdin.read()
"""


def test_nobody_outlives_an_agent_that_is_killed(tmp_path):
    script = tmp_path / "program.py"
    # Both write into one pipe, each of them its line at once; `print` may write it in parts.
    script.write_text("import os, time; os.write(1, b'up\\n'); time.sleep(600)")
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT.format(root=ROOT), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with agent:
        lines = sorted(agent.stdout.readline().decode().split() for _ in range(2))
        assert [line[0] for line in lines] == ["up", "worker"]
        worker, zygote = map(int, lines[1][1:])
        agent.kill()
    for pid in (worker, zygote):
        # The test adopts orphans.
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_who_is_not_told_to_go_on_ends(ways, monkeypatch):
    """The agent died, or gave up, between the fork and its word."""
    monkeypatch.setattr(module, "GO", b"")
    out = ways.forked(ways.script("print('it ran')"))
    assert (out.exit_code, out.out) == (0, "")


def refused(ways, why):
    zygote = ways.ready.zygote
    for _ in range(3):
        assert ways.ready.fork(ways.script("print(1)"), ways.environ, [0, 1, 2]) is None
    (told,) = ways.ready.notices
    assert why in told
    assert ended(zygote, limit_s=LIMIT_S)


def test_a_module_that_starts_a_thread_is_not_forked(own):
    ways = own("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    refused(ways, "the_job: it starts 1 thread, which a fork would lose")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import torch; torch.cuda.is_initialized = lambda: True", "sets up CUDA"),
        ("data = open(__file__)", "keeps open what workers would share: "),
        ("import subprocess; child = subprocess.Popen(['sleep', '600'])", "starts 1 process"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("raise SystemExit('no, thanks')", "SystemExit: no, thanks"),
        ("import os; os._exit(9)", "ended the process with exit code 9"),
    ],
    ids=["cuda", "file", "process", "import", "exit", "end"],
)
@pytest.mark.exhaustive
def test_other_modules_that_are_not_forked(text, why, own):
    refused(own(text), why)
    for child in children(os.getpid()):
        if b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.exhaustive
def test_what_the_jobs_module_makes_of_its_process_is_each_workers(own):
    text = """
import atexit, random, signal, sys
import numpy, torch
random.seed(1)
numpy.random.seed(2)
print("imported")
print("to people", file=sys.stderr)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
atexit.register(print, "at exit")
ONCE = []
"""
    ways = own(text)
    script = ways.script(
        "import the_job, random, numpy, torch, signal; the_job.ONCE.append(1)\n"
        "print(the_job.ONCE, random.random(), numpy.random.random(), signal.getsignal(signal.SIGUSR2))\n"
    )
    first, second, cold = ways.forked(script), ways.forked(script), ways.cold(script, PYTHONPATH=str(ways.directory))
    assert first == second == cold
    assert first.out.startswith("imported\n[1] ")
    assert first.out.endswith("\nat exit\n")
    assert first.err == "to people\n"


@pytest.mark.exhaustive
def test_chance_is_each_workers_own(ways):
    script = ways.script("import random, numpy, torch; print(random.random(), numpy.random.random(), torch.rand(1))")
    drawn = [ways.forked(script).out.split(maxsplit=2) for _ in range(3)]
    assert all(len(set(column)) == 3 for column in zip(*drawn, strict=True))


LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor(index) ** 2
if __name__ == "__main__":
    for way in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=way)
        print([batch.tolist() for batch in loader])
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.set_num_threads(2)
    model(torch.ones(256, 64)).sum().backward()
    optimizer.step()
    print(torch.get_num_threads())
"""


@pytest.mark.exhaustive
def test_loaders_processes_and_threads_work_in_a_fork(ways):
    seen = ways.forked(ways.script(LOADER))
    assert (seen.exit_code, seen.err) == (0, "")
    assert seen.out == "[[0, 1, 4, 9], [16, 25, 36, 49]]\n" * 2 + "2\n"


@pytest.mark.exhaustive
def test_threads_are_as_many_as_were_asked_for(own):
    ways = own(OMP_NUM_THREADS="2")
    assert ways.forked(ways.script("import torch; print(torch.get_num_threads())")).out == "2\n"
    assert ways.forked(ways.script(LOADER)).exit_code == 0


@pytest.mark.exhaustive
def test_a_stuck_zygote_is_given_up(own, monkeypatch):
    ways = own()
    assert ways.forked(ways.script("")).exit_code == 0
    monkeypatch.setattr(module, "FORK_S", 0.2)
    stuck = ways.ready.zygote
    os.kill(stuck, signal.SIGSTOP)
    assert ways.ready.fork(ways.script(""), ways.environ, [0, 1, 2]) is None
    assert "stuck" in ways.ready.notices[0]
    until(lambda: ways.ready._zygote is not None and ways.ready.zygote != stuck, what="another zygote")
    monkeypatch.undo()
    assert ways.forked(ways.script("")).exit_code == 0


@pytest.mark.exhaustive
def test_a_wait_for_the_zygote_is_cut_short(own):
    ways = own("import time; time.sleep(600)")
    ways.ready.attach(emit=lambda event: None, wake=ways.ready.wake, interrupted=lambda: True)
    threading.Timer(0.1, ways.ready.wake.wake).start()
    assert ways.ready.fork(ways.script(""), ways.environ, [0, 1, 2]) is None


@pytest.mark.exhaustive
def test_a_zygote_that_imports_for_ever_is_given_up(own, monkeypatch):
    monkeypatch.setattr(module, "READY_S", 0.3)
    ways = own("import time; time.sleep(600)")
    assert ways.ready.fork(ways.script(""), ways.environ, [0, 1, 2]) is None
    assert "longer than 0 s" in ways.ready.notices[0]


@pytest.mark.exhaustive
def test_after_the_end_workers_start_cold_and_nothing_is_told(own):
    ways = own()
    ways.ready.stop()
    ways.ready.wake = WakePipe()
    ways.ready._stop = WakePipe()
    assert ways.ready.fork(ways.script(""), ways.environ, [0, 1, 2]) is None
    assert ways.ready.notices == []


FORK = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
sys.stdin.read()
"""


def test_orphans_of_a_killed_worker_are_gone_and_buried(ways, pipes):
    """The test process adopts orphans for good, as an agent that is process 1 of its container does."""
    worker = ways.fork(ways.script(FORK), files=pipes.files)
    pipes.started()
    orphan = int(pipes.out.readline())
    wake = WakePipe()
    workers = WorkerProcesses({0: worker}, wake=wake, clock=SYSTEM_CLOCK)
    workers.kill()
    assert workers.ended[0].exit_code == -signal.SIGKILL
    assert ended(orphan, limit_s=LIMIT_S)
    workers.close()
    wake.close()
    assert not Path(f"/proc/{orphan}").exists(), "it was not waited for"
