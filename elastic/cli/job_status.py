"""`elastic status --job`: a job's status from etcd alone, for a machine that sees none of its directories."""

from __future__ import annotations

import argparse
import dataclasses
import json

from elastic.cli.console import columns, say
from elastic.cli.etcd_place import members_of, options_of
from elastic.clock import Clock
from elastic.errors import ExitCode, StoreError
from elastic.observe.agreed import JobSeen, job_rows, job_seen
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import KeyValueStore
from elastic.rendezvous.model import world_from_json
from elastic.rendezvous.options import RendezvousOptions
from elastic.rendezvous.wish import NO_WISH, Wish, wish_from_json


def tell(args: argparse.Namespace, *, clock: Clock) -> ExitCode:
    """Print it, once or until the job is over; exit code 1 where it failed.

    Raises:
        StoreError: etcd does not answer or refuses.
    """
    from elastic.rendezvous.etcd import EtcdStore

    options = options_of(args)
    store = EtcdStore(options)
    try:
        while True:
            job = look(store, options=options)
            say(json.dumps(dataclasses.asdict(job)) if args.json else columns(job_rows(job)))
            if not args.watch or job.state == "OVER":
                return ExitCode.FAILED if job.failed else ExitCode.DONE
            clock.sleep(args.interval)
    finally:
        store.close()


def look(store: KeyValueStore, *, options: RendezvousOptions) -> JobSeen:
    """The job as its keys tell it now. Raises StoreError."""
    keys = Keys.of(prefix=options.prefix, job_id=options.job_id)
    world, wish = store.get(keys.world), store.get(keys.wish)
    members = [member for _, member in members_of(store, options=options)]
    return job_seen(
        options.job_id,
        world=world_from_json(world.value) if world else None,
        members=members,
        wish=_wish(wish.value) if wish else NO_WISH,
    )


def _wish(text: str) -> Wish:
    try:
        return wish_from_json(text)
    except StoreError:
        return NO_WISH
