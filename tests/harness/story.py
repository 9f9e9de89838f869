"""A run's records as a test writes them: a few nodes, steps, a loss and a recovery, without any process."""

from __future__ import annotations

from pathlib import Path

from elastic import events
from elastic.events import Cause, Direction, EventFile, Outcome, Record

BATCH = 24


def record(event, *, at_s, node="a", rank=None, generation=1):
    return Record(time_s=at_s, node=node, rank=rank, generation=generation, event=event)


def agent(node, *, at_s):
    event = events.AgentStarted(
        job_id="job-1",
        agent=f"agent-{node}",
        endpoint="e:2379",
        exporter=f"{node}:9400",
        version="1",
        torch_version="2",
    )
    return record(event, at_s=at_s, node=node, generation=0)


def world(*nodes, at_s, generation=1, cause=Cause.START, leader="a"):
    return [
        record(
            events.WorldFormed(
                world_size=len(nodes),
                nodes=nodes,
                node_count=len(nodes),
                node_rank=rank,
                cause=cause,
                reason=f"{len(nodes)} nodes are here",
                seconds=0.2,
                leader=node == leader,
            ),
            at_s=at_s,
            node=node,
            generation=generation,
        )
        for rank, node in enumerate(nodes)
    ]


def begun(*nodes, at_s, generation=1, iteration=0, tier="none"):
    """Workers started, group ready, state restored on every node, a second apart."""
    found = []
    for rank, node in enumerate(nodes):
        where = {"node": node, "generation": generation}
        found += [
            record(events.WorkerStarted(worker_rank=rank, pid=10 + rank, path="refork"), at_s=at_s, **where),
            record(events.GroupReady(backend="gloo", seconds=0.1), at_s=at_s + 1, rank=rank, **where),
            record(
                events.Restored(
                    tier=tier,
                    iteration=iteration,
                    consumed_samples=iteration * BATCH,
                    seconds=0.1,
                    reason="it is the newest",
                    arrived=() if tier == "none" else ((tier, 12_300_000, 0.02 * (1 + rank)),),
                ),
                at_s=at_s + 2,
                rank=rank,
                **where,
            ),
        ]
    return sorted(found, key=lambda each: each.time_s)


def step(iteration, *nodes, at_s, generation=1, loss=2.0, seconds=0.9):
    share = BATCH // len(nodes)
    start = (iteration - 1) * BATCH
    return [
        record(
            events.StepCommitted(
                iteration=iteration,
                start=start,
                stop=start + BATCH,
                ranges=((start + rank * share, start + (rank + 1) * share),),
                step_samples=BATCH,
                step_digest=1,
                run_digest=7,
                loss=loss,
                world_size=len(nodes),
                seconds=seconds,
                own_s=0.8 * seconds,
            ),
            at_s=at_s,
            node=node,
            rank=rank,
            generation=generation,
        )
        for rank, node in enumerate(nodes)
    ]


def saved(iteration, *, at_s, tier="disk", generation=1, stall_s=0.0):
    event = events.CheckpointSaved(
        iteration=iteration,
        consumed_samples=iteration * BATCH,
        bytes=1000,
        seconds=0.5,
        interval_s=None,
        tier=tier,
        stall_s=stall_s,
    )
    return record(event, at_s=at_s, rank=0, generation=generation)


def ended(node, *, at_s, outcome=Outcome.SUCCEEDED, reason="done", generation=1):
    return record(
        events.JobEnded(outcome=outcome, exit_code=0, reason=reason), at_s=at_s, node=node, generation=generation
    )


def with_a_kill() -> list[Record]:
    """Three nodes, ten steps a second apart from 104 s on; c is killed at 113.5, two go on from step 8 to 20."""
    found = [agent(node, at_s=100.0) for node in "abc"] + world("a", "b", "c", at_s=101.0)
    found += begun("a", "b", "c", at_s=101.5)
    for iteration in range(1, 11):
        found += step(iteration, "a", "b", "c", at_s=103.0 + iteration, loss=3.0 - 0.1 * iteration)
    found.append(saved(5, at_s=108.2, stall_s=0.2))
    found.append(saved(8, at_s=111.1, tier="memory"))
    lost = events.WorkerLost(worker_rank=0, pid=10, cause=Cause.PEER_LOST, reason="worker 0 lost a peer")
    found.append(record(lost, at_s=113.5))
    found.append(record(events.RoundOpened(cause=Cause.PEER_LOST, reason="worker 0 on a ended at step 11"), at_s=113.6))
    found.append(record(events.NodeLost(lost="c", reason="its lease ended"), at_s=114.0))
    found += world("a", "b", at_s=114.0, generation=2, cause=Cause.NODE_LOST)
    rescaled = events.Rescaled(direction=Direction.DOWN, cause=Cause.NODE_LOST, old_world_size=3, new_world_size=2)
    found.append(record(rescaled, at_s=114.0, generation=2))
    found += begun("a", "b", at_s=114.2, generation=2, iteration=8, tier="memory")
    for iteration in range(9, 21):
        found += step(iteration, "a", "b", at_s=108.5 + iteration, generation=2, loss=3.0 - 0.1 * iteration)
    recovered = events.Recovered(cause=Cause.PEER_LOST, path="refork", seconds=4.0, lost_steps=2)
    found.append(record(recovered, at_s=117.5, generation=2))
    return sorted(found, key=lambda each: each.time_s)


def finished() -> list[Record]:
    """The same to its end."""
    done = events.RunFinished(iteration=20, consumed_samples=20 * BATCH)
    tail = [record(done, at_s=129.0, rank=0, generation=2)]
    tail += [ended(node, at_s=129.5, generation=2, reason="done on a, b") for node in "ab"]
    return [*with_a_kill(), saved(20, at_s=128.8, generation=2), *tail]


def write(save_path: Path, records: list[Record]) -> Path:
    """As the nodes would have left them."""
    files = {node: EventFile(save_path / "events" / f"{node}.jsonl") for node in {each.node for each in records}}
    for each in records:
        files[each.node].append(each)
    for file in files.values():
        file.close()
    return save_path
