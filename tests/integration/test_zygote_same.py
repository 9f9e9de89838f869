"""A worker that the zygote forked cannot be told from a new Python: the same programs, run both ways, side by side."""

import os
import re
import sys

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.launch.ready import ReadyWorkers
from tests.harness.both_ways import BothWays

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def ready():
    made = ReadyWorkers(
        module="", command_bytes=400, environ={**os.environ, "OMP_NUM_THREADS": "1"}, clock=SYSTEM_CLOCK
    )
    made.start()
    yield made
    made.stop()


@pytest.fixture
def ways(ready, tmp_path):
    made = BothWays(ready, tmp_path)
    yield made
    for worker in made.started:
        assert worker.returncode is not None, "it still runs"


LOOK = """
import gc, os, signal, sys, threading, resource
main = sys.modules["__main__"]
print(sys.argv, sys.orig_argv, __name__, __file__, main.__spec__, main.__package__, __builtins__)
print(sorted(vars(main)), type(main.__loader__), main.__loader__.name, main.__loader__.path, main is not None)
print(sys.path, os.getcwd(), sys.flags, sys.warnoptions, sys._xoptions)
print(sorted(item for item in os.environ.items() if item[0] != "_"))
print({number.name: str(signal.getsignal(number)) for number in signal.valid_signals() if number < 32})
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(signal.ITIMER_REAL))
print(os.getpgrp() == os.getpid() == os.getsid(0), os.getppid(), os.umask(0o22), os.nice(0), os.sched_getaffinity(0))
print(sorted(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
print([thread.name for thread in threading.enumerate()])
print(open("/proc/self/comm").read(), resource.getrlimit(resource.RLIMIT_NOFILE), gc.isenabled(), gc.get_threshold())
print(open("/proc/self/cmdline", "rb").read().rstrip(b"\\0"), sys.stdin.read(), sys.stdin.encoding, sys.stdout.encoding)
print(sys.stdout.line_buffering, sys.stdout.write_through, sys.stderr.errors, sys.excepthook, sys.gettrace())
read = dict(item.split("=", 1) for item in open("/proc/self/environ").read().split("\\0") if item)
print(sorted(read) == sorted(name for name in os.environ if name != "LC_CTYPE"))
"""
RAISES = """
import elastic.errors
class Broken(Exception): pass
def inner(): raise Broken("on purpose")
try:
    inner()
except Broken as error:
    raise RuntimeError("told so") from error
"""
EXIT = """
import atexit, sys, threading, time
atexit.register(print, "at exit")
wait = threading.Event()
threading.Thread(target=lambda: (wait.wait(), print("the thread is done"))).start()
threading.Timer(0.02, wait.set).start()
print("main is done")
sys.exit({code})
"""
HOOK = """
import sys
sys.excepthook = lambda kind, error, tb: print("hook", kind, error, tb.tb_lineno, file=sys.stderr)
1 / 0
"""
SPAWN = """
import multiprocessing, sys
def work(number):
    return number + len(sys.argv), __name__
if __name__ == "__main__":
    for way in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            print(way, pool.map(work, [1, 2]))
            pool.close()
            pool.join()
    print(multiprocessing.current_process(), multiprocessing.parent_process(), multiprocessing.active_children())
"""
PROGRAMS = {
    "look": LOOK,
    "raises": RAISES,
    "no syntax": "print('never'\n",
    "indentation": "if True:\nprint(1)\n",
    "exit 3": EXIT.format(code=3),
    "exit text": EXIT.format(code="'a text'"),
    "exit none": EXIT.format(code=""),
    "end": "print(1)",
    "interrupted": "raise KeyboardInterrupt",
    "group": "raise ExceptionGroup('several', [ValueError(1), KeyError('x')])",
    "own hook": HOOK,
    "atexit raises": "import atexit; atexit.register(lambda: 1 / 0)",
    "_exit": "import os; os._exit(7)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupt comes": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    "broken pipe": "import os; r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    "abort": "import os; os.abort()",
    "warning": "import warnings; warnings.warn('careful')",
    "logging": "import logging; logging.warning('on the last resort'); print(logging.getLogger().handlers)",
    "closed files": "import os, sys; sys.stdout.close()",
    "binary": "import sys; sys.stdout.buffer.write(bytes(range(256)).replace(b'\\r', b''))",
    "torch": "import torch; print(torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype())",
    "pools": SPAWN,
}


def plain(text, directory):
    """Without what differs between any two runs."""
    return re.sub(r"0x[0-9a-f]+", "…", text.replace(str(directory), "HERE"))


OFTEN = ("look", "raises", "exit 3", "pools")


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.exhaustive) for name in PROGRAMS]
)
def test_a_script(name, ways):
    command = [*ways.script(PROGRAMS[name]), "--a", "", "b c", "ü"]
    forked, cold = ways.forked(command, EXTRA="ü\udcff"), ways.cold(command, EXTRA="ü\udcff")
    assert plain(forked.err, ways.directory) == plain(cold.err, ways.directory)
    assert plain(forked.out, ways.directory) == plain(cold.out, ways.directory)
    assert forked.exit_code == cold.exit_code


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["look", "raises", "exit 3", "pools"])
def test_a_module(name, ways, monkeypatch):
    (ways.directory / "package").mkdir()
    inside = "work" if name == "pools" else "__main__"
    ways.script(PROGRAMS[name], f"package/{inside}.py")
    ways.script("raise ValueError('from a package')", "package/__init__.py" if name == "raises" else "other.py")
    monkeypatch.chdir(ways.directory)
    command = [sys.executable, "-u", "-m", "package.work" if name == "pools" else "package", "x"]
    forked, cold = ways.forked(command), ways.cold(command)
    assert plain(forked.err, ways.directory) == plain(cold.err, ways.directory)
    assert plain(forked.out, ways.directory) == plain(cold.out, ways.directory)
    assert forked.exit_code == cold.exit_code


@pytest.mark.exhaustive
def test_a_module_that_is_not_there(ways):
    command = [sys.executable, "-u", "-m", "no_such_module_here"]
    forked, cold = ways.forked(command), ways.cold(command)
    assert forked == cold
    assert forked.exit_code == 1


@pytest.mark.exhaustive
def test_a_relative_script_by_a_link(ways, monkeypatch):
    (ways.directory / "real").mkdir()
    ways.script(LOOK, "real/program.py")
    (ways.directory / "linked.py").symlink_to("real/program.py")
    monkeypatch.chdir(ways.directory)
    command = [sys.executable, "-u", "linked.py"]
    assert ways.forked(command) == ways.cold(command)
