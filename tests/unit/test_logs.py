"""`elastic logs`: lines of all nodes, by time, with whose they are; files that grow, are rotated or are not ours."""

import json
import os

import pytest

from elastic.cli import main
from elastic.cli.logs_command import Reader, follow
from elastic.clock import ManualClock
from elastic.observe.logs import LogLine, files_in, line_of, shown, whose


def ours(text, *, time_s, node="a", ranks=(0,)):
    told = {"time_s": time_s, "node": node, "ranks": list(ranks), "generation": 1, "stream": "stdout", "text": text}
    return json.dumps(told)


@pytest.fixture
def run_dir(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.jsonl").write_text(
        ours("first", time_s=1.0) + "\n" + ours("third", time_s=3.0, ranks=(0, 1, 2, 5)) + "\n"
    )
    (logs / "b.jsonl").write_text(ours("second", time_s=2.0, node="b", ranks=()) + "\n")
    return tmp_path


def test_lines_of_all_nodes_come_by_time_with_node_and_rank(run_dir, capsys):
    assert main(["logs", str(run_dir)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "00:00:01 [a r0] first",
        "00:00:02 [b] second",
        "00:00:03 [a r0-2,5] third",
    ]


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (["--node=b"], ["second"]),
        (["--rank=0"], ["first", "third"]),
        (["-n", "2"], ["second", "third"]),
        (["-n", "0"], []),
    ],
)
def test_some_of_them_as_json(run_dir, capsys, options, texts):
    assert main(["logs", str(run_dir), "--json", *options]) == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == texts


def test_torchruns_own_directory_is_read_too(run_dir, capsys):
    place = run_dir / "torch" / "job_x1" / "attempt_0" / "3"
    place.mkdir(parents=True)
    (place / "stderr.log").write_text('Traceback\n{"not": "ours"}\n\x1b[31mred\x07\n')
    assert main(["logs", str(run_dir), f"--log-dir={run_dir / 'torch'}", "--rank=3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "[job_x1 r3] Traceback",
        '[job_x1 r3] {"not": "ours"}',
        "[job_x1 r3]  [31mred ",
    ]


def test_a_place_without_logs_says_where_to_look(tmp_path, capsys):
    assert main(["logs", str(tmp_path)]) == 64
    assert "name torchrun's --log-dir, or look at `elastic events`" in capsys.readouterr().err
    assert main(["logs", str(tmp_path), "-n", "-1"]) == 64


class Interrupted(Exception):
    """The reader has seen enough."""


def test_following_sees_growth_new_files_and_rotation_once(run_dir):
    logs = run_dir / "logs"
    reader = Reader([logs])
    assert [line.text for line in reader.read()] == ["first", "second", "third"]

    def grow(number):
        if number == 0:
            with (logs / "a.jsonl").open("a") as file:
                file.write(ours("fourth", time_s=4.0) + "\n" + ours("half", time_s=5.0)[:20])
        elif number == 1:
            with (logs / "a.jsonl").open("a") as file:
                file.write(ours("half", time_s=5.0)[20:] + "\n")
            (logs / "a.jsonl").rename(logs / "a.1.jsonl")
            (logs / "a.jsonl").write_text(ours("after", time_s=6.0) + "\n")
        elif number == 2:
            (logs / "c.jsonl").write_text("plain\n")
        else:
            raise Interrupted

    class Steps(ManualClock):
        count = 0

        def sleep(self, seconds):
            grow(self.count)
            self.count += 1

    seen = []
    with pytest.raises(Interrupted):
        follow(reader, tell=seen.append, clock=Steps())
    assert [line.text for line in seen] == ["fourth", "half", "after", "plain"]
    assert seen[-1] == LogLine(node="c", ranks=(), stream="", text="plain")


def test_rotated_files_come_in_their_order(tmp_path):
    for name in ("a.jsonl", "a.1.jsonl", "a.10.jsonl", "a.2.jsonl", "b.log", "b.log.1", "a.txt"):
        (tmp_path / name).write_text("x\n")
    found = files_in(tmp_path)
    assert [file.path.name for file in found] == [
        *("a.10.jsonl", "a.2.jsonl", "a.1.jsonl", "a.jsonl", "b.log.1", "b.log"),
    ]
    assert {file.node for file in found} == {"a", "b"}


def test_what_comes_from_workers_cannot_move_the_cursor(tmp_path):
    file = whose(tmp_path / "a.jsonl", directory=tmp_path)
    line = line_of(ours("\x1b[2Jgone\r", time_s=1.0, node="\x1b[31mx") + "\n", file=file)
    assert "\x1b" not in shown(line)
    assert os.fsencode(shown(line)).isascii()
