"""The metrics that dashboards and alerts of others may rely on: a name, type or label that goes is a broken promise."""

import pytest

from elastic.metrics.definition import Kind
from elastic.metrics.definitions import DEFINITIONS, TIERS

COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
PROMISED = [
    ("elastic_time_seconds_total", COUNTER, ("state",)),
    ("elastic_recovery_duration_seconds", HISTOGRAM, ("path",)),
    ("elastic_recovery_stage_duration_seconds", HISTOGRAM, ("stage",)),
    ("elastic_checkpoint_age_seconds", GAUGE, ("tier",)),
    ("elastic_checkpoint_last_success_timestamp_seconds", GAUGE, ("tier",)),
    ("elastic_checkpoint_duration_seconds", HISTOGRAM, ("tier",)),
    ("elastic_checkpoint_stall_seconds_total", COUNTER, ("tier",)),
    ("elastic_checkpoint_failures_total", COUNTER, ("tier",)),
    ("elastic_rescales_total", COUNTER, ("direction", "cause")),
    ("elastic_restarts_total", COUNTER, ("reason", "path")),
    ("elastic_failures_total", COUNTER, ("reason",)),
    ("elastic_lost_steps_total", COUNTER, ()),
    ("elastic_samples_replayed_total", COUNTER, ()),
    ("elastic_samples_missed_total", COUNTER, ()),
    ("elastic_samples_changed_total", COUNTER, ()),
    ("elastic_skipped_samples_total", COUNTER, ()),
    ("elastic_fenced_operations_total", COUNTER, ("kind",)),
    ("elastic_store_request_duration_seconds", HISTOGRAM, ("op",)),
    ("elastic_store_errors_total", COUNTER, ("op",)),
    ("elastic_restart_budget_remaining", GAUGE, ("reason",)),
    ("elastic_rank_step_duration_seconds", GAUGE, ("local_rank",)),
    ("elastic_worker_straggles", GAUGE, ("local_rank",)),
    ("elastic_generation", GAUGE, ()),
    ("elastic_world_size", GAUGE, ()),
    ("elastic_step", GAUGE, ()),
    ("elastic_last_step_timestamp_seconds", GAUGE, ()),
    ("elastic_data_digest", GAUGE, ()),
]
BY_NAME = {each.name: each for each in DEFINITIONS}


@pytest.mark.parametrize(("name", "kind", "labels"), PROMISED, ids=[each[0] for each in PROMISED])
def test_it_is_there(name, kind, labels):
    assert (BY_NAME[name].kind, BY_NAME[name].label_names) == (kind, labels)


def test_copies_are_told_apart_by_where_they_lie():
    assert {"memory", "peer", "disk"} <= set(TIERS)


def test_no_label_takes_what_a_setting_says_but_the_names_of_job_and_node():
    """So no password, address or path of the settings can come into a label."""
    open_ended = {name for each in DEFINITIONS for name, values in each.labels if values is None}
    assert open_ended == {"version", "torch_version", "job_id", "node"}
