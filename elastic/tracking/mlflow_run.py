"""MLflow: one run, found again by a tag of ours; a metric's step is the number of samples."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.tracking.tracker import TrackedRun

_TAG = "elastic.run"
_LEADING = "loss"
_MOST_PARAMS = 100
"""Of one request."""


def open_run(run: TrackedRun) -> MlflowRun:
    """Where it goes is said by mlflow's own variables (MLFLOW_TRACKING_URI, …)."""
    client = MlflowClient()
    known = client.get_experiment_by_name(run.project)
    experiment = known.experiment_id if known is not None else client.create_experiment(run.project)
    found = client.search_runs([experiment], filter_string=f"tags.`{_TAG}` = '{run.name}'", max_results=1)
    if found:
        return MlflowRun(client, str(found[0].info.run_id), clock=SYSTEM_CLOCK)
    made = client.create_run(experiment, tags={_TAG: run.name}, run_name=run.name)
    params = [Param(name, str(value)) for name, value in run.settings.items()]
    for at in range(0, len(params), _MOST_PARAMS):
        client.log_batch(made.info.run_id, params=params[at : at + _MOST_PARAMS])
    return MlflowRun(client, str(made.info.run_id), clock=SYSTEM_CLOCK)


class MlflowRun:
    """A run of theirs."""

    def __init__(self, client: MlflowClient, run_id: str, *, clock: Clock) -> None:
        self.client, self.run_id, self._clock = client, run_id, clock

    def begin(self, samples: int) -> int:
        """Nothing can be taken back: what is done again is left out."""
        self.client.update_run(self.run_id, status="RUNNING")
        told = self.client.get_metric_history(self.run_id, _LEADING)
        return max([samples, *(int(metric.step) for metric in told)])

    def log(self, values: Mapping[str, float], *, samples: int) -> None:
        """One request for all of it."""
        now_ms = int(self._clock.wall_s() * 1000)
        self.client.log_batch(self.run_id, metrics=[Metric(k, v, now_ms, samples) for k, v in values.items()])

    def close(self) -> None:
        """Marked as ended; a later start takes it up again."""
        self.client.set_terminated(self.run_id)
