"""What commands that ask something of one job share: the options that say which job and which etcd, and its keys."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from elastic.cli.etcd_place import options_of
from elastic.observe.words import plain

if TYPE_CHECKING:
    from elastic.rendezvous.keys import Keys
    from elastic.rendezvous.kv import KeyValueStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """torchrun's own names for them, spelled in either way."""
    parser.add_argument("--rdzv-endpoint", "--rdzv_endpoint", default="", help="etcd, as torchrun was told")
    parser.add_argument("--rdzv-conf", "--rdzv_conf", default="", help="credentials and so on, as torchrun was told")
    job = parser.add_mutually_exclusive_group(required=True)
    job.add_argument("--rdzv-id", "--rdzv_id", dest="job", default="", help="the job, as torchrun was told")
    job.add_argument("--save-path", default="", help="instead of the job: the run's checkpoint.save_path")
    parser.add_argument("--reason", default="", help="why; it goes into the events")


@contextmanager
def job_keys(args: argparse.Namespace) -> Iterator[tuple[KeyValueStore, Keys]]:
    """The store and the names of the job's keys in it.

    Raises:
        ConfigError, UsageError: what cannot be understood. StoreError: there is no way to etcd.
    """
    from elastic.rendezvous.etcd import EtcdStore
    from elastic.rendezvous.keys import Keys

    job = args.job or _job_of(args.save_path)
    options = options_of(args, job=job)
    store = EtcdStore(options)
    try:
        yield store, Keys.of(prefix=options.prefix, job_id=job)
    finally:
        store.close()


def reason_of(args: argparse.Namespace) -> str:
    """Who asks, and why if that was said."""
    why = f": {plain(args.reason)}" if args.reason else ""
    return f"asked by {_user()} at {socket.gethostname()}{why}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A uid without a name, as containers have it.
        return f"uid {os.getuid()}"


def _job_of(save_path: str) -> str:
    from elastic.checkpoint.root import identity_of

    return identity_of(save_path).job_id
