"""The loop that runs a Job: the own-loop example of Session, with schedule and clipping."""

from __future__ import annotations

from typing import Any

from torch import nn

from elastic.config.model import Settings
from elastic.job import Evaluation, Job
from elastic.plan.batch_mode import BatchMode
from elastic.session import Session


def run_job(job: Job, settings: Settings) -> None:
    """Train a job to its end, or until the membership changes.

    Raises:
        SystemExit: with a documented exit code where the run does not reach its end here.
    """
    overrides: dict[str, Any] = {} if job.until is None else {"steps": job.until}
    with Session(settings=settings, **overrides) as run:
        model = run.parallelize(job.model(run.world))
        optimizer = job.optimizer(model)
        base_rates = [group["lr"] for group in optimizer.param_groups]
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(job.dataset(), collate_fn=job.collate):
            with step:
                for batch in step.micro_batches():
                    step.backward(job.loss(model, batch))
                if job.max_grad_norm is not None:
                    step.clip_grad_norm_(job.max_grad_norm)
                if job.schedule is not None or settings.training.batch is BatchMode.PER_RANK:
                    factor = step.rate_factor * (1.0 if job.schedule is None else job.schedule(step.stop))
                    for group, rate in zip(optimizer.param_groups, base_rates, strict=True):
                        group["lr"] = rate * factor
                optimizer.step()
            if job.evaluation is not None and step.crosses(job.evaluation.every_samples):
                _evaluate(run, model, job.evaluation)


def _evaluate(run: Session, model: nn.Module, evaluation: Evaluation) -> None:
    training = model.training
    model.eval()
    run.evaluate(evaluation.dataset(), lambda batch: evaluation.measure(model, batch), collate_fn=evaluation.collate)
    model.train(training)
