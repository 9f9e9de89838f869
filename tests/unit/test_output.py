"""The agent's hold on what workers print: pipes, prefixes, the journal and its rotation."""

import io
import json
import logging
import os
import threading

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.launch.journal import Journal, JournalHandler
from elastic.launch.output import Output


@pytest.fixture
def screen():
    """What the agent's own output and error show."""
    return io.StringIO(), io.StringIO()


@pytest.fixture
def make(screen):
    made = []

    def build(*, workers=1, journal=None, out=None):
        out = screen[0] if out is None else out
        output = Output(node="n1", workers=workers, journal=journal, clock=SYSTEM_CLOCK, out=out, err=screen[1])
        made.append(output)
        return output

    yield build
    for output in made:
        output.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "elastic-output"]


def write(fd, text):
    os.write(fd, text.encode())


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_says_who_said_it_on_the_stream_that_it_was_said_on(screen, make, tmp_path):
    output = make(journal=Journal(tmp_path, node="n1", most_bytes=10_000, kept=1))
    out, err = output.lend(0)
    output.name({0: 4}, generation=7)
    write(out, "hello\n\x1b[31mred\x1b[0m\n")
    write(err, "Traceback\n")
    output.settle()
    assert screen[0].getvalue() == "[n1 r4] hello\n[n1 r4] red\n"
    assert screen[1].getvalue() == "[n1 r4] Traceback\n"
    found = lines(tmp_path / "n1.jsonl")
    assert [(each["stream"], each["text"]) for each in found if each["stream"] == "stdout"] == [
        ("stdout", "hello"),
        ("stdout", "red"),
    ]
    assert {(each["node"], tuple(each["ranks"]), each["generation"]) for each in found} == {("n1", (4,), 7)}
    os.close(out)
    os.close(err)


def test_what_all_workers_say_is_told_once(screen, make):
    output = make(workers=3)
    ends = [output.lend(local_rank) for local_rank in range(3)]
    output.name({0: 3, 1: 4, 2: 5}, generation=1)
    for out, _ in ends:
        write(out, "loading the model\n")
    write(ends[1][0], "my own\n")
    output.settle()
    assert screen[0].getvalue() == "[n1 r3-5] loading the model\n[n1 r4] my own\n"
    for out, err in ends:
        os.close(out)
        os.close(err)


def test_the_last_words_of_a_worker_that_died_are_told(screen, make):
    output = make()
    out, err = output.lend(0)
    write(err, "cut off in the mid")
    os.close(err)
    os.close(out)
    output.settle()
    assert screen[1].getvalue() == "[n1 r0] cut off in the mid\n"


def test_a_worker_that_prints_without_an_end_cannot_hold_up_the_agent(screen, make):
    output = make()
    out, err = output.lend(0)
    stop = threading.Event()

    def print_on():
        while not stop.is_set():
            write(out, "again and again\n" * 100)

    printer = threading.Thread(target=print_on)
    printer.start()
    began_s = SYSTEM_CLOCK.monotonic_s()
    output.settle()
    assert SYSTEM_CLOCK.monotonic_s() - began_s < 4
    stop.set()
    printer.join()
    os.close(out)
    os.close(err)


def test_a_screen_that_is_gone_keeps_no_line_from_the_journal(make, tmp_path):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    output = make(journal=Journal(tmp_path, node="n1", most_bytes=10_000, kept=1), out=Gone())
    out, err = output.lend(0)
    write(out, "kept\n")
    output.settle()
    assert [each["text"] for each in lines(tmp_path / "n1.jsonl")] == ["kept"]
    os.close(out)
    os.close(err)


def test_a_journal_never_grows_beyond_its_sizes(tmp_path):
    journal = Journal(tmp_path / "logs", node="a", most_bytes=2000, kept=2)
    for number in range(200):
        journal.write(time_s=1.0, ranks=(0,), generation=1, stream="stdout", text=f"line {number}")
    journal.close()
    files = {path.name: lines(path) for path in (tmp_path / "logs").iterdir()}
    assert sorted(files) == ["a.1.jsonl", "a.2.jsonl", "a.jsonl"]
    assert all((tmp_path / "logs" / name).stat().st_size <= 2000 for name in files)
    kept = [each["text"] for name in ("a.2.jsonl", "a.1.jsonl", "a.jsonl") for each in files[name]]
    assert kept == [f"line {number}" for number in range(200 - len(kept), 200)]


def test_a_journal_goes_on_where_an_earlier_agent_ended_and_may_keep_nothing_older(tmp_path):
    for _ in range(3):
        journal = Journal(tmp_path, node="a", most_bytes=250, kept=0)
        journal.write(time_s=1.0, ranks=(), generation=0, stream="agent", text="x" * 20)
        journal.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    assert len(lines(tmp_path / "a.jsonl")) in (1, 2)


def test_a_disk_that_is_full_is_told_once(tmp_path, caplog):
    (tmp_path / "logs").write_text("a file is in the way")
    journal = Journal(tmp_path / "logs", node="a", most_bytes=2000, kept=2)
    handler = JournalHandler(journal)
    ours = logging.getLogger("elastic")
    ours.addHandler(handler)
    try:
        for _ in range(3):
            logging.getLogger("elastic.launch.agent").warning("regroup")
    finally:
        ours.removeHandler(handler)
    assert caplog.text.count("are lost") == 1


def test_the_agents_own_messages_are_in_it_too(tmp_path):
    journal = Journal(tmp_path, node="a", most_bytes=2000, kept=2)
    handler = JournalHandler(journal)
    record = logging.LogRecord("elastic.launch.agent", logging.INFO, "f", 1, "generation %d", (4,), None)
    handler.emit(record)
    journal.close()
    (found,) = lines(journal.path)
    assert (found["text"], found["ranks"], found["stream"]) == ("generation 4", [], "agent")
