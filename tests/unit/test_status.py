"""What a run is doing, told from its records: each state with its reason, ages, pace, and an ETA that survives."""

import json

import pytest

from elastic import events
from elastic.cli import main
from elastic.clock import ManualClock
from elastic.events import Cause, Outcome
from elastic.local.follow import Follower
from elastic.observe import words
from elastic.observe.ledger import Ledger
from elastic.observe.screen import screen
from elastic.observe.status import State, StatusFold
from tests.harness import story


def fold(records):
    found = StatusFold()
    for each in records:
        found.apply(each)
    return found


def at(records, now_s, **more):
    return fold([each for each in records if each.time_s <= now_s]).status(now_s=now_s, **more)


def test_the_states_of_a_run_in_their_order():
    run = story.finished()
    moments = {
        90.0: State.UNKNOWN,
        100.5: State.WAITING,
        101.2: State.STARTING,
        102.6: State.RESTORING,
        103.7: State.FIRST_STEP,
        110.0: State.TRAINING,
        113.55: State.BETWEEN,
        114.1: State.STARTING,
        118.0: State.TRAINING,
        130.0: State.FINISHED,
        9999.0: State.FINISHED,
    }
    assert {now_s: at(run, now_s).state for now_s in moments} == moments


def test_reasons_are_told():
    run = story.with_a_kill()
    assert at(run, 113.55).reason == "worker 0 lost a peer"
    assert at(run, 113.7).reason == "worker 0 on a ended at step 11"
    nodes = {node.node: node for node in at(run, 120.0).nodes}
    assert (nodes["c"].state, nodes["c"].reason) == (State.LOST, "its lease ended")
    assert (nodes["a"].state, nodes["a"].ranks) == (State.TRAINING, (0,))
    awaited = story.record(events.NodesAwaited(here=1, needed=2, reason="b has left"), at_s=121.0)
    assert at([*run, awaited], 122.0).reason == "1 of at least 2 are here: b has left"


def test_what_is_about_to_end_a_nodes_part_is_told_with_it():
    asked = events.LeaveAsked(source="drain", reason="maintenance")
    run = [each for each in story.with_a_kill() if each.time_s <= 113.2] + [story.record(asked, at_s=113.2)]
    run += story.step(11, "a", "b", "c", at_s=113.3)
    node = at(run, 113.4).nodes[0]
    assert (node.state, node.warning) == (State.TRAINING, "asked to leave: maintenance")
    assert "rank 0, training; asked to leave: maintenance" in dict(screen(at(run, 113.4)))["node a"]
    gone = [*run, story.ended("a", at_s=113.5, outcome=Outcome.PREEMPTED, reason="left")]
    assert (at(gone, 113.6).nodes[0].state, at(gone, 113.6).nodes[0].warning) == (State.STOPPED, "")


def test_numbers_of_a_run_at_work():
    status = at(story.with_a_kill(), 120.6, goal_samples=480)
    assert (status.iteration, status.consumed_samples, status.world_size, status.generation) == (12, 288, 2, 2)
    assert status.loss == pytest.approx(1.8)
    assert {tier: (copy.iteration, copy.saved_s) for tier, copy in status.copies.items()} == {
        "disk": (5, 108.2),
        "memory": (8, 111.1),
    }
    assert [(each.path, each.lost_steps, each.seconds) for each in status.recoveries] == [("refork", 2, 4.0)]
    assert status.rescales == 1


def test_the_eta_survives_a_rescale():
    run = story.with_a_kill()
    before, between, early = (at(run, now_s, goal_samples=480) for now_s in (113.2, 114.3, 117.6))
    assert before.samples_per_s == pytest.approx(24.0)
    assert before.eta_s == pytest.approx((480 - 240) / 24.0)
    # While nothing is measured yet, two of three workers are as fast as two of them were before.
    assert between.samples_per_s == early.samples_per_s == pytest.approx(16.0)
    assert early.eta_s == pytest.approx((480 - 216) / 16.0)
    late = at(run, 128.6, goal_samples=600)
    assert late.samples_per_s == pytest.approx(24.0)
    assert late.eta_s == pytest.approx(120 / 24.0)
    assert at(run, 128.6).eta_s is None


def test_silence_is_told_and_an_end_is_no_silence():
    silent = at(story.with_a_kill(), 200.0)
    assert silent.state is State.SILENT
    assert silent.reason == "nothing was heard for 72 s; before that: training"
    slow = story.step(21, "a", "b", at_s=129.0, generation=2, seconds=600.0)
    assert at([*story.with_a_kill(), *slow], 300.0).state is State.TRAINING
    assert at(story.finished(), 9999.0).state is State.FINISHED


def test_a_job_ends_when_all_its_members_have():
    run = story.with_a_kill()
    one = [*run, story.ended("a", at_s=130.0, outcome=Outcome.FAILED, reason="ValueError", generation=2)]
    assert at(one, 131.0).state is State.TRAINING
    both = [*one, story.ended("b", at_s=130.5, outcome=Outcome.FAILED, reason="ValueError", generation=2)]
    assert (at(both, 131.0).state, at(both, 131.0).reason) == (State.FAILED, "ValueError")
    again = [*both, story.agent("a", at_s=140.0)]
    assert at(again, 141.0).state is State.WAITING


def test_a_late_word_of_an_older_generation_moves_nothing():
    run = story.with_a_kill()
    late = [
        *story.step(40, "a", "b", "c", at_s=129.0, generation=1),
        story.record(events.RoundOpened(cause=Cause.NODE_LOST, reason="old"), at_s=129.1, generation=1, node="c"),
    ]
    status = at([*run, *late], 130.0)
    assert (status.state, status.iteration, status.generation) == (State.TRAINING, 20, 2)


def test_a_worker_alone_without_agent():
    run = [*story.begun("vm", at_s=1.0, generation=0), *story.step(1, "vm", at_s=4.0, generation=0)]
    assert at(run, 5.0).state is State.TRAINING
    done = events.RunFinished(iteration=1, consumed_samples=24)
    status = at([*run, story.record(done, at_s=6.0, node="vm", rank=0, generation=0)], 7.0)
    assert (status.state, status.nodes[0].state) == (State.FINISHED, State.FINISHED)


def test_the_screen_is_plain_text_whatever_a_worker_said():
    evil = story.record(events.RoundOpened(cause=Cause.WORKER_EXIT, reason="\x1b[31mred\x07\nnew line"), at_s=129.0)
    text = "\n".join(" ".join(row) for row in screen(at([*story.with_a_kill(), evil], 130.0, goal_samples=960)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "red  new line" in text
    assert "[###############...............] 50.0%  step 20, 480 samples of 960" in text
    assert "durable copy step 5, 22 s old" in text
    assert "generation 2: peer_lost, 4.00 s by refork, 2 steps again" in text


def test_every_kind_of_event_has_a_sentence():
    for cls in events.EVENT_TYPES.values():
        fields = {name: _value(kind) for name, kind in cls.__annotations__.items()}
        assert words.sentence(cls(**fields)).strip(), cls


def _value(kind):
    values = {"str": "x", "int": 1, "float": 1.5, "bool": True, "float | None": None}
    enums = {"Cause": Cause.START, "Direction": events.Direction.UP, "Outcome": Outcome.FAILED}
    return values.get(kind, enums.get(kind, ()))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.84, "0.8 s"), (59, "59 s"), (723, "12 min 3 s"), (11100, "3 h 5 min"), (90000, "1 d 1 h")]
)
def test_durations(seconds, text):
    assert words.duration(seconds) == text


def test_the_status_is_the_same_of_few_steps(tmp_path):
    """A run that is long enough for most of its steps to be left out; the pace is that of its very end."""
    longer = [*story.with_a_kill()]
    for iteration in range(21, 421):
        longer += story.step(iteration, "a", "b", at_s=108.5 + iteration, generation=2)
        if iteration % 90 == 0:
            longer.append(story.saved(iteration, at_s=108.6 + iteration, generation=2))
    story.write(tmp_path, longer)
    read = [
        list(events.merged_records(tmp_path / "events", on_unreadable=pytest.fail, few_steps=few))
        for few in (False, True)
    ]
    with Follower(tmp_path / "events", few_steps=True) as follower:
        follower.read()
        read.append(sorted(follower.records, key=lambda each: each.time_s))
    assert len(read[1]) == len(read[2]) < 0.4 * len(read[0])
    every, few, followed = (fold(records).status(now_s=530.0, goal_samples=20_000) for records in read)
    assert followed == few == every


@pytest.fixture
def run(capsys):
    def call(*argv):
        code = main(argv)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def test_the_status_command(run, tmp_path):
    story.write(tmp_path, story.finished())
    code, out, err = run("status", str(tmp_path))
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split(maxsplit=1) == ["state", "FINISHED: done on a, b"]
    code, out, _ = run("status", "--json", str(tmp_path))
    found = json.loads(out)
    assert (code, found["state"], found["iteration"]) == (0, "finished", 20)
    assert found["recoveries"][0]["path"] == "refork"


def test_watching_ends_with_the_run_and_a_failed_job_is_exit_code_1(run, tmp_path):
    failed = [story.ended(n, at_s=130.0, outcome=Outcome.FAILED, reason="ValueError", generation=2) for n in "ab"]
    story.write(tmp_path, [*story.with_a_kill(), *failed])
    code, out, err = run("status", "--watch", "--json", str(tmp_path))
    assert (code, err, json.loads(out)["reason"]) == (1, "", "ValueError")


def test_watching_tells_what_comes(tmp_path, capsys):
    from elastic.cli import build_parser
    from elastic.cli.status_command import watch

    story.write(tmp_path, story.with_a_kill())

    class WhileAsleep(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            story.write(tmp_path, [story.ended(node, at_s=130.0, generation=2) for node in "ab"])

    args = build_parser().parse_args(["status", "--watch", str(tmp_path)])
    assert watch(args, clock=WhileAsleep(129.0)).state is State.FINISHED
    out = capsys.readouterr().out
    assert out.index("TRAINING") < out.index("FINISHED")
    assert "\x1b" not in out, "no terminal, no control sequences"


def test_the_events_command(run, tmp_path):
    story.write(tmp_path, story.finished())
    code, out, err = run("events", str(tmp_path))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "1970-01-01 00:01:40.000Z  a g0  agent up (elastic 1, torch 2), metrics at a:9400"
    assert [line for line in lines if "recovered from peer_lost in 4.00 s by refork, 2 steps to do again" in line]
    assert not [line for line in lines if " step 3," in line]
    assert lines == sorted(lines, key=lambda line: line[:24])
    _, every, _ = run("events", "--all", "--node", "b", str(tmp_path))
    assert " b rank 1 g1  step 3, 72 samples, loss 2.7000, 0.900 s" in every
    assert " a rank" not in every
    _, records, _ = run("events", "--json", "--kind", "node_lost", str(tmp_path))
    assert json.loads(records)["lost"] == "c"


def test_a_line_that_is_no_record_hides_nothing(run, tmp_path):
    story.write(tmp_path, story.finished())
    with (tmp_path / "events" / "a.jsonl").open("ab") as file:
        file.write(b'{"time_s":1,"kind":"step_comm\xff\n{"torn')
    for command in ("status", "events"):
        code, out, err = run(command, str(tmp_path))
        assert code == 0
        assert "done on a, b" in out
        assert "1 line or file of the events cannot be read, passed over" in err
        assert "a.jsonl" in err


@pytest.mark.parametrize("argv", [["status"], ["status", "--interval", "0"], ["events"]])
def test_a_place_without_events_is_a_wrong_use(run, argv, tmp_path):
    code, out, err = run(*argv, str(tmp_path))
    assert (code, out) == (64, "")
    assert "events" in err or "--interval" in err


def test_a_job_that_is_paused_is_not_silent_and_its_time_is_told_apart():
    asked = events.WishHeard(what="pause", min_nodes=0, max_nodes=0, reason="asked by ann")
    opened = events.RoundOpened(cause=Cause.PAUSED, reason="paused (asked by ann): finish the step and save first")
    run = [each for each in story.with_a_kill() if each.time_s <= 112.0]
    run += [story.record(asked, at_s=112.1), story.record(opened, at_s=112.2), *story.step(11, "a", at_s=112.5)]
    status = at(run, 9999.0)
    assert (status.state, status.eta_s) == (State.PAUSED, None)
    assert "PAUSED for 2 h 44 min: paused (asked by ann)" in dict(screen(status))["state"]
    assert words.sentence(asked) == "asked to pause: asked by ann"
    wished = events.WishHeard(what="scale", min_nodes=1, max_nodes=3, reason="night")
    assert words.sentence(wished) == "asked to have 1 to 3 nodes: night"
    found = StatusFold()
    ledger = Ledger(found)
    for each in [*run, story.record(asked, at_s=5000.0)]:
        ledger.apply(each)
        found.apply(each)
    assert ledger.spent_s()["paused"] > 4800
