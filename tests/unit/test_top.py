"""`elastic top`: the whole run on a terminal, as text without one, as JSON; what is shown follows the records."""

import asyncio
import json

import pytest

from elastic import events
from elastic.checkpoint import policy, survey
from elastic.checkpoint.locating import storage_for
from elastic.cli import main, top_command
from elastic.clock import ManualClock
from elastic.local.follow import Follower
from elastic.observe.watching import Watching
from tests.harness import story


@pytest.fixture
def run_dir(tmp_path):
    story.write(tmp_path, story.with_a_kill())
    return tmp_path


def watch(records):
    watching = Watching()
    for each in records:
        watching.apply(each)
    return watching


def test_without_a_terminal_it_is_text_with_the_latest_events(run_dir, capsys):
    assert main(["top", str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert "node c" in out
    assert "recovered from peer_lost in 4.00 s by refork" in out
    assert "\x1b" not in out


def test_as_json(run_dir, capsys):
    assert main(["top", str(run_dir), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"]["world_size"] == 2
    assert len(told["losses"]) > 5
    assert told["told"] == len(told["events"])


@pytest.mark.parametrize("argv", [("top",), ("status",), ("events", "--all")], ids=" ".join)
def test_a_loss_that_is_no_number_is_no_number_in_json(run_dir, capsys, argv):
    story.write(run_dir, story.step(21, "a", "b", at_s=129.0, generation=2, loss=float("nan")))

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    assert main([*argv, str(run_dir), "--json"]) == 0
    told = [json.loads(line, parse_constant=refuse) for line in capsys.readouterr().out.splitlines()]
    assert '"loss": null' in json.dumps(told)


def test_an_iteration_that_is_taken_away_while_it_is_looked_at_costs_the_goal_alone(run_dir, capsys, monkeypatch):
    gone = policy.Found(place="iteration_00000005", iteration=5, lineage="l")
    monkeypatch.setattr(survey, "survey", lambda root, storage: survey.Survey(tracker=None, found=(gone,)))
    assert main(["top", str(run_dir), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["status"]
    assert (told["goal_samples"], told["iteration"]) == (None, 20)


def test_an_iteration_that_others_wrote_tells_no_goal(run_dir, capsys):
    shard = run_dir / "iteration_00000009" / "model-0000000-0000001.safetensors"
    shard.parent.mkdir()
    shard.write_bytes(minimal_shard())
    assert survey.survey(str(run_dir), storage=storage_for(str(run_dir))).in_place[0].problem is None
    assert main(["top", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"]["goal_samples"] is None


def minimal_shard():
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    return len(header).to_bytes(8, "little") + header + bytes(4)


def test_wrong_arguments_are_told(run_dir, tmp_path):
    assert main(["top", str(run_dir), "--interval=0"]) == 64
    assert main(["top", str(tmp_path / "nothing")]) == 64


def test_steps_are_losses_and_everything_else_is_told():
    run = story.with_a_kill()
    seen = watch(run).watched(now_s=130.0, goal_samples=960)
    assert len(seen.losses) == len([each for each in run if each.rank == 0 and each.event.kind == "step_committed"])
    assert not any("step_committed" in line for line in seen.events)


def test_the_screen_shows_what_happens_and_ends_with_q(run_dir):
    textual = pytest.importorskip("textual", reason="not run: textual is not installed")
    from elastic.observe.top_screen import TopApp

    async def drive():
        clock = ManualClock(130.0)
        with Follower(run_dir / "events") as follower:
            app = TopApp(top_command.looker(str(run_dir), follower, clock=clock), interval_s=3600)
            async with app.run_test(size=(120, 50)) as pilot:
                await pilot.pause()
                before = app.export_screenshot()
                asked = events.LeaveAsked(source="drain", reason="[red]new disk")
                story.write(run_dir, [story.record(asked, at_s=131.0, node="b", generation=2)])
                clock.now_s = 133.0
                app.show()
                await pilot.pause()
                after = app.export_screenshot()
                await pilot.press("q")
        return before, after, app.return_code

    before, after, code = asyncio.run(drive())
    assert "TRAINING" in before
    assert "its&#160;lease&#160;ended" in before
    assert "[red]new" not in before
    assert "asked&#160;to&#160;leave&#160;(drain):&#160;[red]new&#160;disk" in after, "text of others is no markup"
    assert code == 0
    assert textual.__version__
