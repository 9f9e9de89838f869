"""What the agent asks its zygote for, what forbids a fork, and what /proc is made to show. Pure parts."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from elastic.launch.chance import Chance, settle
from elastic.launch.footprint import Footprint, look, obstacle
from elastic.launch.forked import ForkedWorker, path_of
from elastic.launch.order import Answer, Cold, Kind, Order, Program, program_of
from elastic.launch.proc_title import Area, areas, fitted
from elastic.launch.ready import MOST_DEATHS, pause_s

PYTHON = "/usr/bin/python3"


class TestProgramOf:
    def test_a_script(self, tmp_path):
        script = tmp_path / "train.py"
        script.write_text("")
        wanted = Program(kind=Kind.SCRIPT, name=str(script), arguments=("--lr", "1"))
        assert program_of([PYTHON, "-u", str(script), "--lr", "1"], python=PYTHON) == wanted

    def test_a_module(self):
        wanted = Program(kind=Kind.MODULE, name="package.train", arguments=("x",))
        assert program_of((PYTHON, "-u", "-m", "package.train", "x"), python=PYTHON) == wanted

    @pytest.mark.parametrize(
        ("command", "why"),
        [
            (["numactl", "--physcpubind=0", PYTHON, "-u", "x.py"], "not started as"),
            (["/other/python", "-u", "x.py"], "not started as"),
            ([PYTHON, "x.py"], "not started as"),
            ([PYTHON, "-u"], "not started as"),
            (["./train.sh"], "'./train.sh'"),
            ([PYTHON, "-u", "-m"], "no module"),
            ([PYTHON, "-u", "no such file.py"], "no file of source code"),
            ([PYTHON, "-u", "/tmp"], "no file of source code"),
        ],
    )
    def test_all_else_is_started_cold(self, command, why):
        found = program_of(command, python=PYTHON)
        assert isinstance(found, Cold)
        assert why in found.reason


def test_orders_and_answers_arrive_as_they_were():
    order = Order(
        command=(PYTHON, "-u", "ü\udcff.py"),
        program=Program(kind=Kind.SCRIPT, name="ü\udcff.py", arguments=("", "a b")),
        environ={"A": "", "B": "\udc80 =\n"},
        cwd="/x",
    )
    assert Order.decode(order.encode()) == order
    for answer in (Answer(), Answer(pid=7), Answer(refused="why")):
        assert Answer.decode(answer.encode()) == answer


class TestObstacle:
    BEFORE = Footprint(threads=1, files=frozenset({"/dev/null (descriptor 0)"}), children=frozenset())

    def test_none(self):
        assert obstacle(self.BEFORE, self.BEFORE) == ""
        assert obstacle(look(), look()) == ""

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"threads": 2}, "starts 1 thread,"),
            ({"threads": 4}, "starts 3 threads,"),
            ({"children": frozenset({5})}, "starts 1 process,"),
            ({"children": frozenset({5, 6})}, "starts 2 processes,"),
            ({"cuda": True}, "sets up CUDA"),
            ({"files": BEFORE.files | {"/data (descriptor 9)"}}, "would share: /data (descriptor 9)"),
            ({"files": BEFORE.files | {f"/{n}" for n in range(9)}}, "/0, /1, /2, …"),
        ],
    )
    def test_each(self, change, words):
        after = Footprint(**{"threads": 1, "files": self.BEFORE.files, "children": frozenset()} | change)
        assert words in obstacle(self.BEFORE, after)

    def test_it_sees_a_file_and_a_child(self, tmp_path):
        before = look()
        with (tmp_path / "data").open("w"):
            assert str(tmp_path / "data") in obstacle(before, look())
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
            assert look().children - before.children == {child.pid}


class TestTitle:
    def test_strings_are_laid_out_as_the_kernel_does(self):
        assert fitted([b"python", b"x"], room=12) == b"python\0x\0\0\0\0"
        assert fitted([b"python", b"too long"], room=12) == b"python\0\0\0\0\0\0"
        assert fitted([], room=0) == b""

    def test_where_they_lie(self):
        fields = " ".join(str(n) for n in range(4, 53))
        assert areas(f"1 (a ) b) S {fields}") == (Area(start=48, end=49), Area(start=50, end=51))
        assert areas(f"1 (x) S {fields.replace('48 49 50 51', '0 0 0 0')}") is None, "not for us to know"
        assert areas("1 (x) S 1 2") is None


def test_the_next_zygote_comes_at_once_then_later_and_later():
    pauses = [pause_s(deaths) for deaths in range(MOST_DEATHS)]
    assert pauses[:2] == [0, 0]
    assert pauses[1:] == sorted(set(pauses[1:]))
    assert pauses[-1] <= 10


class TestChance:
    @pytest.fixture(autouse=True)
    def _restored(self):
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        yield
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])

    @staticmethod
    def numbers():
        return random.random(), np.random.random(), torch.rand(1).item()

    def test_what_nobody_seeded_gets_a_new_seed(self):
        keys = settle()
        self.numbers()  # to draw is not to seed
        chance = Chance.since(keys)
        assert chance == Chance(python=None, reseed_numpy=True, reseed_torch=True)
        numpy_state, torch_state = np.random.get_state(), torch.get_rng_state()
        chance.apply()
        first = self.numbers()[1:]
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        chance.apply()
        assert not set(first) & set(self.numbers()[1:])

    def test_what_was_seeded_stays(self):
        keys = settle()
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        chance = Chance.since(keys)
        expected = self.numbers()
        random.seed()  # as a fork does
        np.random.seed(2)
        torch.manual_seed(3)
        chance.apply()
        assert self.numbers() == expected


class TestForkedWorker:
    def started(self, code):
        # A child that this process has, as one that the zygote forked.
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        process.returncode = 0  # it is waited for below
        return process, ForkedWorker(process.pid, command=("x",))

    def test_it_is_polled_and_waited_for(self):
        process, worker = self.started("input()")
        assert worker.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0)
        process.stdin.close()
        assert worker.wait(60) == 1
        assert (worker.wait(), worker.wait(0), worker.poll(), worker.returncode) == (1, 1, 1, 1)

    def test_a_signal(self):
        process, worker = self.started("import os; os.kill(os.getpid(), 9)")
        process.stdin.close()
        assert worker.wait() == -9

    def test_how_it_is_called(self):
        assert path_of(ForkedWorker(os.getpid(), command=())) == "refork"
        assert path_of(object()) == "reexec"
