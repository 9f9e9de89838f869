"""Curves of a run in other people's tools: clean after restarts, and never a danger to the training."""

import contextlib
import subprocess
import sys
import threading

import pytest

from elastic.config.load import resolve
from elastic.errors import ConfigError, UsageError
from elastic.events import Evaluated, Restored, StepCommitted
from elastic.session.tracked import track, tracked_run
from elastic.tracking import tracking as tracking_module
from elastic.tracking.curves import Begin, Curves, Point
from elastic.tracking.tracking import Tracking, check_there, open_tracker

BATCH = 10


def restored(step):
    return Restored(tier="disk", iteration=step, consumed_samples=step * BATCH, seconds=0.0, reason="")


def step(number, *, loss=1.0, world_size=2, skipped=""):
    return StepCommitted(
        iteration=number,
        start=(number - 1) * BATCH,
        stop=number * BATCH,
        ranges=(),
        step_samples=BATCH,
        step_digest=0,
        run_digest=0,
        loss=loss,
        world_size=world_size,
        seconds=0.5,
        skipped=skipped,
    )


class Fake:
    """Remembers what it is told; `kept`: up to where it says that it has points."""

    def __init__(self, *, kept=0, fails=""):
        self.told, self.kept, self.fails, self.closed = [], kept, fails, threading.Event()

    def begin(self, samples):
        self.told.append(samples)
        return max(samples, self.kept)

    def log(self, values, *, samples):
        if self.fails:
            raise OSError(self.fails)
        self.told.append((samples, dict(values)))

    def close(self):
        self.closed.set()


def tracking(fake, *, every_steps=1, tell=lambda why: None):
    return Tracking(lambda: fake, every_steps=every_steps, tell=tell)


def test_points_are_means_of_the_steps_since_the_last_one_and_lie_at_samples():
    curves = Curves(every_steps=2)
    assert curves.take(restored(0)) == Begin(samples=0)
    assert curves.take(step(1, loss=3.0)) is None
    values = {"loss": 2.0, "step_seconds": 0.5, "world_size": 2.0, "iteration": 2.0}
    assert curves.take(step(2, loss=1.0)) == Point(samples=20, values=values)
    assert curves.take(step(4, skipped="nan")) is None
    measured = Evaluated(iteration=4, consumed_samples=40, values=(("accuracy", 0.5), ("loss", float("nan"))))
    assert curves.take(measured) == Point(samples=40, values={"evaluation/accuracy": 0.5})
    curves.take(step(5, loss=9.0))
    assert curves.take(restored(3)) == Begin(samples=30), "what was lost is in no mean"
    assert curves.take(step(4, loss=5.0)).values["loss"] == 5.0


def test_a_tool_that_cannot_take_back_is_not_told_again():
    fake = Fake(kept=30)
    run = tracking(fake)
    for event in (restored(2), step(3), step(4)):
        run(event)
    run.close()
    assert fake.closed.is_set()
    assert [told if isinstance(told, int) else told[0] for told in fake.told] == [20, 40]


def test_what_a_tool_raises_ends_the_tracking_alone_and_is_told_once():
    said = []
    run = tracking(Fake(fails="no route to host"), tell=said.append)
    for number in range(1, 50):
        run(restored(0) if number == 1 else step(number))
    run.close()
    assert said == ["tracking has ended, training goes on: OSError: no route to host"]


def test_a_directory_that_cannot_be_made_ends_the_tracking_alone(tmp_path):
    (tmp_path / "file").write_text("x")
    wanted = {"ELASTIC__TRACKING__TO": "tensorboard", "ELASTIC__TRACKING__DIRECTORY": str(tmp_path / "file" / "in")}
    with contextlib.ExitStack() as stack:
        said = []
        environ = wanted | {"ELASTIC__CHECKPOINT__SAVE_PATH": str(tmp_path)}
        settings = resolve(argv=[], environ=environ).settings
        told = track(settings, job_id="j", emit=said.append, stack=stack)
        for event in (restored(0), step(1), step(2)):
            told(event)
    (notice,) = said
    assert notice.text.startswith("tracking has ended, training goes on: tracking.directory ")
    assert notice.text.endswith("cannot be made (Not a directory); name another one")


def test_a_tool_that_hangs_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(tracking_module, "_MOST_WAITING", 5)
    monkeypatch.setattr(tracking_module, "_CLOSE_S", 0.05)
    began, may_go = threading.Event(), threading.Event()

    class Hangs(Fake):
        def begin(self, samples):
            began.set()
            assert may_go.wait(10)
            return samples

    said = []
    run = tracking(Hangs(), tell=said.append)
    run(restored(0))
    assert began.wait(10)
    for number in range(1, 20):
        run(step(number))
    run.close()
    assert said == ["the tracker takes no points: 5 wait for it"]
    assert not may_go.is_set()
    may_go.set()
    run.close()


def test_nothing_is_opened_before_the_run_goes_on_from_somewhere():
    opened = []
    run = Tracking(lambda: opened.append(1) or Fake(), every_steps=1, tell=print)
    run(step(1))
    run.close()
    assert opened == []


def test_tensorboard_curves_rise_strictly_through_three_kills(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = resolve([f"--checkpoint.save_path={tmp_path}", "--tracking.to=tensorboard"], environ={}).settings
    last = 0
    for life, (begins, ends) in enumerate([(0, 9), (0, 20), (12, 31), (25, 33), (30, 40)]):
        run = Tracking(
            lambda: open_tracker("tensorboard", tracked_run(settings, job_id="j")), every_steps=1, tell=pytest.fail
        )
        run(restored(begins))
        for number in range(begins + 1, ends + 1):
            run(step(number, loss=float(life)))
        run.close()
        last = ends
    found = EventAccumulator(str(tmp_path / "tracking"))
    found.Reload()
    points = found.Scalars("loss")
    assert [point.step for point in points] == [number * BATCH for number in range(1, last + 1)]
    assert [point.value for point in points] == [1.0] * 12 + [2.0] * 13 + [3.0] * 5 + [4.0] * 10


def test_every_start_of_a_run_has_its_name_and_no_other_run_does(tmp_path):
    def name(path, job_id="j"):
        settings = resolve([f"--checkpoint.save_path={tmp_path / path}"], environ={}).settings
        return tracked_run(settings, job_id=job_id).name

    assert name("a") == name("a") == name("b/../a")
    assert len({name("a"), name("b"), name("a", job_id="k")}) == 3


def test_what_is_asked_for_is_there_or_the_start_says_so():
    check_there("tensorboard")
    with pytest.raises(UsageError, match="there is no no_such_tool here; is it on PYTHONPATH"):
        check_there("no_such_tool.mine:open_run")
    with pytest.raises(UsageError, match="has no 'nothing'"):
        open_tracker("elastic.tracking.tracker:nothing", None)
    with pytest.raises(ConfigError, match=r"tracking\.to needs none, tensorboard, wandb, mlflow or module:name"):
        resolve(["--tracking.to=excel"], environ={})


def test_no_tool_is_imported_by_a_worker_that_was_not_asked_for_one():
    code = "import sys, elastic.session.run, elastic.loop; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert not {"tensorboard", "wandb", "mlflow", "PIL"} & set(done.stdout.split())
    assert "torch" in done.stdout.split()
