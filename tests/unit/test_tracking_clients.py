"""What the trackers ask of Weights & Biases and MLflow, seen by stand-ins of their clients."""

import sys
import threading
import types

import pytest

from elastic.tracking.tracker import TrackedRun

RUN = TrackedRun(name="job-1", project="demo", directory="/d", settings={"training.steps": 5})


@pytest.fixture
def stand_in(monkeypatch):
    """Put modules in the place of a library; the tracker's own module is imported anew and forgotten again."""

    def stand_in(ours, **modules):
        for name, fields in modules.items():
            module = types.ModuleType(name.replace("__", "."))
            vars(module).update(fields)
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.delitem(sys.modules, ours, raising=False)
        found = __import__(ours, fromlist=["open_run"])
        monkeypatch.delitem(sys.modules, ours)
        return found

    return stand_in


class WandbRun:
    step = 41

    def __init__(self):
        self.logged, self.finished = [], False

    def log(self, values, *, step):
        self.logged.append((step, values))

    def finish(self):
        self.finished = True


def test_wandb_is_asked_to_resume_the_run_of_that_id(stand_in):
    asked, theirs, ended = {}, WandbRun(), threading.Event()

    def init(**given):
        asked.update(given)
        return theirs

    ours = stand_in("elastic.tracking.wandb_run", wandb={"init": init, "Settings": dict, "teardown": ended.set})
    run = ours.open_run(RUN)
    assert (asked["id"], asked["resume"], asked["project"]) == ("job-1", "allow", "demo")
    assert asked["config"] == {"training.steps": 5}
    assert (run.begin(30), run.begin(50)) == (40, 50), "what the service has is not sent again"
    run.log({"loss": 1.0}, samples=60)
    run.close()
    assert (theirs.logged, theirs.finished, ended.is_set()) == ([(60, {"loss": 1.0})], True, True)


class Mlflow:
    """As much of a client as is used; one experiment, one run."""

    def __init__(self):
        self.experiments, self.run, self.points, self.params, self.status = {}, None, [], {}, ""

    def get_experiment_by_name(self, name):
        found = self.experiments.get(name)
        return found and types.SimpleNamespace(experiment_id=found)

    def create_experiment(self, name):
        self.experiments[name] = "7"
        return "7"

    def search_runs(self, experiments, *, filter_string, max_results):
        assert experiments == ["7"]
        assert filter_string == "tags.`elastic.run` = 'job-1'"
        return [self.run] if self.run else []

    def create_run(self, experiment, *, tags, run_name):
        assert tags == {"elastic.run": "job-1"}
        self.run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))
        return self.run

    def log_batch(self, run_id, *, params=(), metrics=()):
        self.params |= dict(params)
        self.points += [(metric[0], metric[1], metric[3]) for metric in metrics]

    def update_run(self, run_id, *, status):
        self.status = status

    def get_metric_history(self, run_id, name):
        return [types.SimpleNamespace(step=step) for key, _, step in self.points if key == name]

    def set_terminated(self, run_id):
        self.status = "FINISHED"


def test_mlflow_finds_its_run_again_and_is_told_nothing_twice(stand_in):
    client = Mlflow()
    entities = {"Metric": lambda *fields: fields, "Param": lambda *fields: fields}
    ours = stand_in(
        "elastic.tracking.mlflow_run",
        mlflow={},
        mlflow__entities=entities,
        mlflow__tracking={"MlflowClient": lambda: client},
    )
    first = ours.open_run(RUN)
    assert (first.begin(0), client.status) == (0, "RUNNING")
    first.log({"loss": 0.5, "world_size": 2.0}, samples=40)
    first.close()
    assert (client.status, client.params) == ("FINISHED", {"training.steps": "5"})
    again = ours.open_run(RUN)
    assert again.run_id == first.run_id
    assert (again.begin(30), again.begin(50)) == (40, 50)
