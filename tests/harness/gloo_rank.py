"""One rank of a real gloo group: what it does is named on the command line; its last line of output is JSON."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from elastic.clock import SYSTEM_CLOCK
from elastic.distributed import joining as groups
from elastic.distributed.group import Collectives
from elastic.distributed.joining import join
from elastic.distributed.peers import peer_errors
from elastic.errors import ElasticError
from elastic.session.ending import exit_now
from elastic.world import World
from tests.harness.exact_training import EXACT, VARIANTS, train_exact
from tests.harness.training import train


def say(**found):
    print(json.dumps(found), flush=True)


def values(group: Collectives):
    from tests.integration.test_gloo import VALUES

    gathered = [group.gather([group.rank, value]) for value in VALUES]
    say(gathered=gathered, broadcast=[group.broadcast(value if group.rank == 0 else None) for value in VALUES])


def training(group: Collectives):
    run = train(group, dropout=0.2)
    say(losses=run.losses, parameters=run.parameters.tolist())


def exact(group: Collectives):
    say(runs=[list(train_exact(group, **variant)) for variant in VARIANTS])


def exact_parts(group: Collectives):
    """The same with dealt out parameters; a world of one has none to deal."""
    from elastic.distributed.dealing import Dealt

    strategy = EXACT if group.size == 1 else functools.partial(Dealt, exact=True)
    more = ({"global_batch_size": 20, "micro_batch_size": 9},)
    say(runs=[list(train_exact(group, dealt=True, strategy=strategy, **variant)) for variant in (*VARIANTS, *more)])


def broken_off(group: Collectives, doing):
    """Says so when it has joined; goes on at a word; tells the error."""
    group.sum_(torch.ones(1))
    print("joined", flush=True)
    sys.stdin.readline()
    print("going", flush=True)
    error = None
    try:
        for _ in range(3):
            doing(group)
    except (ElasticError, RuntimeError) as caught:
        error = caught
    say(error=type(error).__name__ if error else None, text=str(error))
    os._exit(0)


def mistake(group: Collectives):
    error = None
    try:
        with peer_errors("adding apples to pears"):
            dist.all_gather_into_tensor(torch.empty(3), torch.ones(2))
    except RuntimeError as caught:
        error = caught
    say(error=type(error).__name__ if error else None, text=str(error))
    group.leave()
    group.leave()


def mismatch(group: Collectives):
    error = None
    try:
        group.sum_(torch.ones(1000 + group.rank))
    except (ElasticError, RuntimeError) as caught:
        error = caught
    say(error=type(error).__name__ if error else None, text=str(error))
    os._exit(0)


def sharded(group: Collectives):
    from elastic.distributed.dealing import Dealt

    run = train(group, dropout=0.2, strategy=Dealt, most_norm=1.0)
    used = [each for event in run.events for each in event.ranges]
    say(losses=run.losses, norms=run.norms, parameters=run.parameters.tolist(), used=used)


def sharded_broken_off(group: Collectives):
    """As broken_off, in steps of a model whose parameters are dealt out: forward itself talks to the others."""
    from elastic.distributed.dealing import Dealt
    from tests.harness.training import course, model, per_sample

    lies, run = Dealt(model(), group), course(rank=group.rank, size=group.size)

    def a_step(group):
        step = run.next_step(group, (lies,), lambda: False)
        with step:
            for batch in step.micro_batches():
                step.backward(per_sample(lies.model, batch))
        run.commit(step)

    a_step(group)
    broken_off(group, a_step)


ROLES = {
    "sharded": sharded,
    "sharded steps": sharded_broken_off,
    "mismatch": mismatch,
    "values": values,
    "train": training,
    "exact": exact,
    "exact parts": exact_parts,
    "sum": lambda group: broken_off(group, lambda g: g.sum_(torch.ones(1000))),
    "gather": lambda group: broken_off(group, lambda g: g.gather("x")),
    "broadcast": lambda group: broken_off(group, lambda g: g.broadcast("x")),
    "mistake": mistake,
}


def meeting_place(rank: int) -> int:
    """A port that rank 0 chose, told in a file."""
    place = Path(os.environ["STORE_FILE"])
    if rank == 0:
        from elastic.local.etcd import free_port

        place.with_suffix(".new").write_text(str(free_port()))
        place.with_suffix(".new").rename(place)
    while not place.exists():
        SYSTEM_CLOCK.sleep(0.01)
    return int(place.read_text())


def main():
    role, world = sys.argv[1], World.from_environ(os.environ)
    torch.set_num_threads(1)
    if role in ("lonely", "no_store"):
        groups.STORE_TIMEOUT_S = groups.COLLECTIVE_TIMEOUT_S = 1.0
        port = meeting_place(0)
        try:
            join(world, environ={**os.environ, "MASTER_PORT": str(port)})
        except ElasticError as error:
            say(error=type(error).__name__, text=str(error))
        return
    group = join(world, environ={**os.environ, "MASTER_PORT": str(meeting_place(world.rank))})
    ROLES[role](group)
    group.leave()
    exit_now(0)  # as a worker does: tearing down torch is not what is tested


if __name__ == "__main__":
    main()
