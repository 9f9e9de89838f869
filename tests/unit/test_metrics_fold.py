"""Events become metrics: each once, on one agent only where a sum over agents would count it again."""

import dataclasses

import pytest

from elastic import events
from elastic.clock import ManualClock
from elastic.events import Cause, Direction, Record
from elastic.metrics import definitions as of
from elastic.metrics.definition import Definition, Kind
from elastic.metrics.fold import Metrics
from elastic.metrics.values import Values
from tests.harness.scrape import samples


def record(event, *, rank=None, node="a", generation=1, time_s=100.0):
    return Record(time_s=time_s, node=node, rank=rank, generation=generation, event=event)


def step(iteration, *, start, stop, loss=2.0, digest=7, seconds=0.3):
    return events.StepCommitted(
        iteration=iteration,
        start=start,
        stop=stop,
        ranges=((start, stop),),
        step_samples=stop - start,
        step_digest=1,
        run_digest=digest,
        loss=loss,
        world_size=2,
        seconds=seconds,
    )


def world(*nodes, cause=Cause.START, node="a"):
    return events.WorldFormed(
        world_size=len(nodes),
        nodes=nodes,
        node_count=len(nodes),
        node_rank=nodes.index(node),
        cause=cause,
        reason="r",
        seconds=0.2,
        leader=False,
    )


def started(rank=0):
    return events.WorkerStarted(worker_rank=rank, pid=1, path="reexec")


def saved(*, tier="disk", interval_s=None):
    return events.CheckpointSaved(
        iteration=40, consumed_samples=960, bytes=1000, seconds=0.7, interval_s=interval_s, tier=tier
    )


@pytest.fixture
def metrics():
    return Metrics(clock=ManualClock(150.0))


def test_before_anything_happened_every_counter_is_there_and_no_gauge_lies(metrics):
    found = samples(metrics)
    assert found["elastic_rescales_total", ("cause", "node_lost"), ("direction", "down")] == 0
    assert found["elastic_restarts_total", ("path", "refork"), ("reason", "peer_lost")] == 0
    assert found["elastic_recovery_duration_seconds_count", ("path", "rejoin")] == 0
    assert found["elastic_job_active",] == 0
    names = {key[0] for key in found}
    assert not names & {"elastic_loss", "elastic_checkpoint_age_seconds", "elastic_last_step_timestamp_seconds"}
    assert not [name for name in names if name.endswith("_created")]


def test_the_number_of_series_never_grows_with_the_run(metrics):
    def feed(generation):
        for rank in range(3):
            metrics.apply(record(step(generation, start=0, stop=24), rank=rank, generation=generation))
        metrics.apply(record(saved(tier=f"strange{generation}"), rank=0))
        metrics.apply(record(events.Fencing(what=f"strange{generation}", reason="r"), rank=1))
        recovered = events.Recovered(cause=Cause.NODE_LOST, path=f"strange{generation}", seconds=1.0, lost_steps=1)
        metrics.apply(record(recovered))

    feed(1)
    before = len(samples(metrics))
    for generation in range(2, 6):
        feed(generation)
    found = samples(metrics)
    assert len(found) == before
    assert found["elastic_fenced_operations_total", ("kind", "other")] == 5
    assert found["elastic_recovery_duration_seconds_count", ("path", "other")] == 5


def test_one_worker_drives_counters_and_every_one_the_position(metrics):
    metrics.apply(record(step(8, start=168, stop=192), rank=0, time_s=101.5))
    metrics.apply(record(step(8, start=168, stop=192, loss=5.0), rank=1, time_s=101.25))
    found = samples(metrics)
    assert found["elastic_step",] == 8
    assert found["elastic_consumed_samples",] == 192
    assert found["elastic_samples_total",] == 24
    assert found["elastic_steps_committed_total",] == 1
    assert found["elastic_step_duration_seconds_count",] == 1
    assert found["elastic_loss",] == 2.0
    assert found["elastic_data_digest",] == 7


def test_each_worker_shows_its_own_time_of_a_step_and_none_where_it_is_not_known(metrics):
    for rank, own_s in ((4, 0.1), (5, 0.25), (6, None), (27, 0.3)):
        told = dataclasses.replace(step(8, start=168, stop=192), own_s=own_s, local_rank=rank - 4)
        metrics.apply(record(told, rank=rank))
    name = "elastic_rank_step_duration_seconds"
    found = {key[1][1]: value for key, value in samples(metrics).items() if key[0] == name}
    assert found == {"0": 0.1, "1": 0.25, "other": 0.3}


def test_who_does_not_lead_counts_and_shows_nothing_of_the_job():
    leads = []
    metrics = Metrics(clock=ManualClock(150.0), is_leader=lambda: bool(leads))
    metrics.apply(record(step(8, start=168, stop=192), rank=1))
    job_wide = {definition.name for definition in of.JOB_DEFINITIONS}
    found = samples(metrics)
    assert found["elastic_step",] == 8
    assert not [key for key in found if key[0].removesuffix("_count") in job_wide]
    leads.append(True)
    assert samples(metrics)["elastic_samples_total",] == 24


def test_a_generation(metrics):
    metrics.apply(record(world("a", "b", "c"), generation=4))
    found = samples(metrics)
    assert (found["elastic_generation",], found["elastic_world_size",], found["elastic_nodes",]) == (4, 3, 3)
    assert found["elastic_rendezvous_duration_seconds_sum",] == 0.2


def test_restarts_are_counted_by_what_ended_the_generation(metrics):
    metrics.apply(record(world("a", "b"), generation=1))
    metrics.apply(record(started(), generation=1))
    metrics.apply(record(events.RoundOpened(cause=Cause.NODE_LOST, reason="b is silent"), generation=1))
    metrics.apply(record(world("a", cause=Cause.NODE_LOST), generation=2))
    metrics.apply(record(started(), generation=2))
    found = samples(metrics)
    restarts = {key[1:]: value for key, value in found.items() if key[0] == "elastic_restarts_total" and value}
    assert restarts == {(("path", "reexec"), ("reason", "node_lost")): 1}


def test_a_newcomers_first_worker_is_no_restart(metrics):
    metrics.apply(record(world("a", "b", cause=Cause.NODE_JOINED), generation=5))
    metrics.apply(record(started(rank=2), generation=5))
    metrics.apply(record(started(rank=3), generation=5))
    found = samples(metrics)
    assert sum(value for key, value in found.items() if key[0] == "elastic_restarts_total") == 0


def test_a_worker_that_lost_its_peer_is_no_failure_of_its_own(metrics):
    for cause in (Cause.PEER_LOST, Cause.WORKER_SIGNAL):
        metrics.apply(record(events.WorkerLost(worker_rank=0, pid=1, cause=cause, reason="r")))
    metrics.apply(record(events.NodeLost(lost="b", reason="silent")))
    found = samples(metrics)
    failures = {key[1][1]: value for key, value in found.items() if key[0] == "elastic_failures_total"}
    assert failures == {"node_lost": 1, "worker_exit": 0, "worker_signal": 1, "worker_hung": 0, "group_failed": 0}


def test_recovery_and_rescale(metrics):
    stages = (("agree", 0.4), ("start", 0.1), ("group", 2.0), ("first_step", 1.5), ("lunch", 9.0))
    told = events.Recovered(cause=Cause.NODE_LOST, path="reexec", seconds=4.0, lost_steps=1, stages=stages)
    metrics.apply(record(told))
    rescaled = events.Rescaled(direction=Direction.DOWN, cause=Cause.NODE_LOST, old_world_size=3, new_world_size=2)
    metrics.apply(record(rescaled))
    found = samples(metrics)
    assert found["elastic_recovery_duration_seconds_bucket", ("le", "2.5"), ("path", "reexec")] == 0
    assert found["elastic_recovery_duration_seconds_bucket", ("le", "5.0"), ("path", "reexec")] == 1
    assert found["elastic_last_recovery_seconds",] == 4.0
    spent = {key[1][1]: v for key, v in found.items() if key[0] == "elastic_recovery_stage_duration_seconds_sum"}
    assert spent == {"agree": 0.4, "start": 0.1, "group": 2.0, "restore": 0, "first_step": 1.5}
    assert found["elastic_lost_steps_total",] == 1
    assert found["elastic_rescales_total", ("cause", "node_lost"), ("direction", "down")] == 1


def test_checkpoints(metrics):
    metrics.apply(record(saved(interval_s=60.0), rank=0, time_s=100.0))
    metrics.apply(record(saved(), rank=1, time_s=101.0))  # Another rank's account of the same save.
    metrics.apply(record(events.CheckpointFailed(iteration=1, reason="r"), rank=0))
    metrics.apply(record(events.CheckpointFailed(iteration=1, reason="r", tier="peer"), rank=0))
    for rank in (0, 1):
        metrics.apply(record(events.CheckpointRejected(iteration=1, reason="r"), rank=rank))
    found = samples(metrics)
    disk = ("tier", "disk")
    assert found["elastic_checkpoint_last_success_timestamp_seconds", disk] == 100
    assert found["elastic_checkpoint_age_seconds", disk] == 50
    assert found["elastic_checkpoint_last_step", disk] == 40
    assert found["elastic_checkpoint_interval_seconds", disk] == 60
    assert found["elastic_checkpoint_duration_seconds_count", disk] == 1
    assert found["elastic_checkpoint_bytes_total", disk] == 1000
    assert found["elastic_checkpoint_failures_total", disk] == 1
    assert found["elastic_checkpoint_failures_total", ("tier", "peer")] == 1
    assert found["elastic_checkpoint_fallbacks_total",] == 1
    assert ("elastic_checkpoint_age_seconds", ("tier", "memory")) not in found


def test_a_clock_that_went_back_makes_no_negative_age():
    metrics = Metrics(clock=ManualClock(50.0))
    metrics.apply(record(saved(), rank=0, time_s=100.0))
    assert samples(metrics)["elastic_checkpoint_age_seconds", ("tier", "disk")] == 0


def test_readiness_says_why(metrics):
    assert not metrics.readiness().ready
    agent = events.AgentStarted(job_id="j", agent="x", endpoint="e", exporter="", version="1", torch_version="2.13.0")
    metrics.apply(record(agent))
    assert (metrics.readiness().ready, metrics.readiness().reason) == (False, "waiting for the first generation")
    metrics.apply(record(world("a"), generation=3))
    assert (metrics.readiness().ready, metrics.readiness().reason) == (True, "member of generation 3")
    ended = events.JobEnded(outcome=events.Outcome.SUCCEEDED, exit_code=0, reason="all steps done")
    metrics.apply(record(ended))
    assert (metrics.readiness().ready, metrics.readiness().reason) == (False, "the job succeeded: all steps done")
    found = samples(metrics)
    assert found["elastic_build_info", ("torch_version", "2.13.0"), ("version", "1")] == 1
    assert found["elastic_job_info", ("job_id", "j"), ("node", "a")] == 1
    assert found["elastic_job_active",] == 0


def test_copies_in_memory_and_what_saves_cost(metrics):
    memory = events.CheckpointSaved(
        iteration=50, consumed_samples=1, bytes=10, seconds=0.1, interval_s=None, tier="memory", stall_s=0.1, skipped=2
    )
    metrics.apply(record(memory, rank=0))
    metrics.apply(record(memory, rank=0))
    for tier in ("memory", "none", "disk"):
        back = events.Restored(tier=tier, iteration=4, consumed_samples=96, seconds=1.0, reason="r")
        for rank in (0, 1):
            metrics.apply(record(back, rank=rank))
    found = samples(metrics)
    assert found["elastic_checkpoint_stall_seconds_total", ("tier", "memory")] == pytest.approx(0.2)
    assert found["elastic_checkpoint_skipped_total", ("tier", "memory")] == 4
    assert found["elastic_checkpoint_last_step", ("tier", "memory")] == 50
    restores = {key[1][1]: value for key, value in found.items() if key[0] == "elastic_restores_total"}
    assert restores == {"process": 0, "memory": 1, "disk": 1, "peer": 0, "other": 0}


def test_what_every_worker_of_the_node_got_is_counted_by_where_from(metrics):
    ways = {0: (("memory", 500, 0.25),), 1: (("disk", 10, 0.5), ("peer", 1000, 0.125)), 2: (("peer", 24, 0.125),)}
    for rank, arrived in ways.items():
        back = events.Restored(
            tier="peer", iteration=4, consumed_samples=96, seconds=9.0, reason="r", arrived=arrived, givers=(3,)
        )
        metrics.apply(record(back, rank=rank))
    found = samples(metrics)
    for tier, size_bytes, seconds in (("memory", 500, 0.25), ("peer", 1024, 0.25), ("disk", 10, 0.5), ("other", 0, 0)):
        assert found["elastic_restore_bytes_total", ("tier", tier)] == size_bytes
        assert found["elastic_restore_transfer_seconds_total", ("tier", tier)] == seconds


def test_restoring_shows_where_the_run_stands(metrics):
    metrics.apply(
        record(events.Restored(tier="disk", iteration=40, consumed_samples=960, seconds=1.0, reason="r"), rank=2)
    )
    assert (samples(metrics)["elastic_step",], samples(metrics)["elastic_consumed_samples",]) == (40, 960)


def test_values_refuse_what_makes_no_sense():
    values = Values(of.DEFINITIONS)
    with pytest.raises(ValueError, match="can only grow"):
        values.add(of.SAMPLES, -1)
    with pytest.raises(TypeError, match="is a counter"):
        values.set(of.SAMPLES, 1)
    with pytest.raises(ValueError, match="has the labels"):
        values.add(of.RESTARTS, 1)


def test_the_table_of_definitions_is_whole_and_follows_the_conventions():
    declared = {value.name for value in vars(of).values() if isinstance(value, Definition)}
    assert declared == {definition.name for definition in of.DEFINITIONS}
    for definition in of.DEFINITIONS:
        assert definition.name.startswith("elastic_")
        assert definition.name.endswith("_total") == (definition.kind is Kind.COUNTER)
        assert definition.help.endswith(".")
        assert not set(definition.label_names) & {"pid", "rank", "le", "job", "instance"}
        # A label of any value is for a gauge that is set once; everything else has a closed set.
        assert all(values for _, values in definition.labels) or definition.name.endswith("_info")


def test_observations_equal_a_naive_count(metrics):
    seconds = [0.0, 0.01, 0.011, 0.3, 59.9, 60.0, 60.1, 1e6]
    for value in seconds:
        metrics.apply(record(step(1, start=0, stop=1, seconds=value), rank=0))
    found = samples(metrics)
    for edge in of.STEP_BUCKETS_S:
        count = sum(value <= edge for value in seconds)
        assert found["elastic_step_duration_seconds_bucket", ("le", str(edge))] == count
    assert found["elastic_step_duration_seconds_bucket", ("le", "+Inf")] == len(seconds)
    assert found["elastic_step_duration_seconds_sum",] == pytest.approx(sum(seconds))


def test_it_is_told_how_many_nodes_are_awaited_until_they_are_there(metrics):
    assert samples(metrics)["elastic_nodes_awaited",] == 0
    metrics.apply(record(events.NodesAwaited(here=1, needed=3, reason="nodes here: 1 of at least 3"), generation=0))
    assert samples(metrics)["elastic_nodes_awaited",] == 2
    assert metrics.readiness().reason == "waiting for a generation: nodes here: 1 of at least 3"
    metrics.apply(record(world("a", "b", "c")))
    assert samples(metrics)["elastic_nodes_awaited",] == 0
    metrics.apply(record(events.NodesAwaited(here=2, needed=3, reason="r")))
    metrics.apply(record(events.JobEnded(outcome=events.Outcome.PREEMPTED, exit_code=75, reason="too few")))
    assert samples(metrics)["elastic_nodes_awaited",] == 0


def test_repeated_requests_of_any_worker_count():
    metrics = Metrics(clock=ManualClock())
    for rank in (0, 1):
        metrics.apply(record(events.StorageRetried(reason="503"), rank=rank))
    assert samples(metrics)[("elastic_storage_retries_total",)] == 2


def test_workers_that_stay_and_replicas_that_differ_are_counted(metrics):
    metrics.apply(record(events.WorkerStayed(worker_rank=0, pid=1), generation=2))
    metrics.apply(record(events.WorkerStayed(worker_rank=1, pid=2), generation=2))
    metrics.apply(record(events.ReplicasDiffered(ranks=(2, 3), reason=""), rank=0))
    restored = events.Restored(tier="process", iteration=5, consumed_samples=40, seconds=0.1, reason="")
    metrics.apply(record(restored, rank=0))
    found = samples(metrics)
    assert found["elastic_workers_stayed_total",] == 2
    assert found["elastic_replicas_differed_total",] == 2
    assert found["elastic_restores_total", ("tier", "process")] == 1
    assert sum(value for key, value in found.items() if key[0] == "elastic_restarts_total") == 0
