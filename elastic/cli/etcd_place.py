"""What commands that ask etcd share: the options that say where it is, and the members that it knows of."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic.errors import UsageError

if TYPE_CHECKING:
    from elastic.rendezvous.kv import KeyValueStore
    from elastic.rendezvous.model import Member
    from elastic.rendezvous.options import RendezvousOptions


@dataclass(kw_only=True)
class _Parameters:
    """torchrun's, as far as they say where etcd is; not frozen, since torchrun's are not."""

    endpoint: str
    run_id: str
    min_nodes: int = 1
    max_nodes: int = 1
    local_addr: str | None = None
    config: dict[str, Any] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """torchrun's own names for them."""
    parser.add_argument("--rdzv-endpoint", default="", metavar="HOSTS", help="etcd; ETCD_ENDPOINTS by default")
    parser.add_argument("--rdzv-conf", default="", metavar="K=V,...", help="as given to torchrun: cacert, user, ...")
    parser.add_argument("--job", default="", metavar="ID", help="one job (--rdzv-id) only")


def options_of(args: argparse.Namespace, *, job: str | None = None) -> RendezvousOptions:
    """Where etcd is, and how to speak to it. `job`: in the place of --job.

    Raises:
        UsageError: an item of --rdzv-conf without "=". ConfigError: what cannot be understood, all at once.
    """
    from elastic.rendezvous.parameters import options_from

    config = {}
    for item in filter(None, args.rdzv_conf.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--rdzv-conf holds {item!r}; expected name=value, several joined by commas")
        config[name.strip()] = value.strip()
    parameters = _Parameters(endpoint=args.rdzv_endpoint, run_id=args.job if job is None else job, config=config)
    return options_from(parameters, environ=os.environ)


def members_of(store: KeyValueStore, *, options: RendezvousOptions) -> list[tuple[str, Member]]:
    """(job id, member) of every agent that lives, of one job or of all.

    Raises:
        StoreError: etcd does not answer or refuses, or holds a member key of another program.
    """
    from urllib.parse import unquote

    from elastic.rendezvous.keys import Keys
    from elastic.rendezvous.model import member_from_json

    if options.job_id:
        keys = Keys.of(prefix=options.prefix, job_id=options.job_id)
        return [(options.job_id, member_from_json(entry.value)) for entry in store.range(keys.members).entries]
    root = options.prefix.rstrip("/") + "/"
    found = []
    for entry in store.range(root).entries:
        job, kind, *rest = entry.key.removeprefix(root).split("/")
        if kind == "members" and rest:
            found.append((unquote(job), member_from_json(entry.value)))
    return found
