"""Measuring: the facts about this machine and its etcd that the judgements of `health` are made over."""

from __future__ import annotations

import email.utils
import errno
import getpass
import http.client
import importlib.metadata
import json
import os
import platform
import resource
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from elastic import __version__
from elastic.checkpoint.locating import is_url, storage_for
from elastic.clock import Clock
from elastic.errors import ElasticError
from elastic.observe import health
from elastic.observe.health import DiskFact, Finding, Level, StoreFact
from elastic.rendezvous.address import split_endpoint
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.options import RendezvousOptions

_ASKED = 10
_FSYNCS = 5
_WRITTEN_BYTES = 16 << 20
_HTTP_LIMIT_S = 3.0
NEEDED = {"torch": "2.13", "torchdata": "0.11", "safetensors": "0.5", "cslab-etcd3": "0.12.1"}


@dataclass(frozen=True, kw_only=True)
class Told:
    """What etcd's HTTP side says: its version, and how far its clock is ahead of ours."""

    version: str = ""
    offset_s: float | None = None


def machine(*, host: str, port: int) -> Iterator[Finding]:
    """What can be told without etcd and without a save_path."""
    yield health.judge_plugin([entry.value for entry in importlib.metadata.entry_points(group="torchrun.handlers")])
    for name, least in NEEDED.items():
        yield health.judge_package(name, found=_version(name), least=least)
    rival = health.judge_rival(_version("etcd3"))
    if rival is not None:
        yield rival
    try:
        found = os.statvfs("/dev/shm")
        yield health.judge_shared_memory(found.f_blocks * found.f_frsize, free_bytes=found.f_bavail * found.f_frsize)
    except OSError:
        yield health.judge_shared_memory(None)
    for name, limit in (("files", resource.RLIMIT_NOFILE), ("processes", resource.RLIMIT_NPROC)):
        yield health.judge_limit(name, resource.getrlimit(limit)[0], infinity=resource.RLIM_INFINITY)
    yield health.judge_user(os.getuid(), _user())
    yield health.judge_port(host, wanted=port, free=_free_port(host, port))


def etcd(options: RendezvousOptions, *, clock: Clock) -> Iterator[Finding]:
    """Reachable, fast, safe, in time; agents that are there are compared with this machine."""
    told = _ask_http(options, clock=clock)
    fact = _ask(options, version=told.version, clock=clock)
    yield health.judge_store(fact)
    yield health.judge_secrecy(fact)
    if not fact.problem:
        yield health.judge_clock(told.offset_s)


def fingerprint() -> str:
    """This machine's versions, as an agent tells them."""
    return f"elastic {__version__}, torch {_version('torch')}, python {platform.python_version()}"


def save_path(path: str, *, clock: Clock) -> list[Finding]:
    """Try what a save does, in a directory of its own that is taken away again. Where the path is not there yet, the
    nearest directory above it that is there is tried, since the path will be made in it."""
    if is_url(path):
        told = "an object store: nothing is tried, since that would cost"
        return [Finding(check="save_path", level=Level.SKIPPED, found=told)]
    return health.judge_disk(_try_disk(path, clock=clock))


def _try_disk(path: str, *, clock: Clock) -> DiskFact:
    storage = storage_for(path)
    path = _nearest(path)
    trial = os.path.join(path, f".doctor-{secrets.token_hex(4)}")
    try:
        storage.make_dir(trial)
        fsyncs_s = []
        for number in range(_FSYNCS):
            began_s = clock.monotonic_s()
            storage.write(os.path.join(trial, f"small-{number}"), b"x")
            fsyncs_s.append(clock.monotonic_s() - began_s)
        began_s = clock.monotonic_s()
        storage.write(os.path.join(trial, "large"), bytes(_WRITTEN_BYTES))
        written_s = clock.monotonic_s() - began_s
        for name in ("one", "other"):
            storage.make_dir(os.path.join(trial, name))
            storage.write(os.path.join(trial, name, "content"), name.encode())
        refuses = False
        try:
            storage.publish(os.path.join(trial, "one"), os.path.join(trial, "other"))
        except FileExistsError:
            refuses = storage.read(os.path.join(trial, "other", "content")) == b"other"
        room = os.statvfs(path)
    except OSError as error:
        return DiskFact(path=path, problem=error.strerror or str(error))
    finally:
        with suppress(OSError):  # Where nothing could be made there is nothing to take away.
            storage.remove_tree(trial)
    return DiskFact(
        path=path,
        fsyncs_s=fsyncs_s,
        write_bytes_per_s=_WRITTEN_BYTES / max(written_s, 1e-6),
        rename_refuses=refuses,
        free_bytes=room.f_bavail * room.f_frsize,
        total_bytes=room.f_blocks * room.f_frsize,
    )


def _nearest(path: str) -> str:
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _ask(options: RendezvousOptions, *, version: str, clock: Clock) -> StoreFact:
    latencies_s: list[float] = []
    store = None
    try:
        store = EtcdStore(options, clock=clock)
        key = Keys.of(prefix=options.prefix, job_id=options.job_id or "doctor").world
        store.get(key)  # The first one connects.
        for _ in range(_ASKED):
            began_s = clock.monotonic_s()
            store.get(key)
            latencies_s.append(clock.monotonic_s() - began_s)
    except ElasticError as error:
        return StoreFact(endpoints=options.endpoints, secure=options.secure, problem=str(error))
    finally:
        if store is not None:
            store.close()
    return StoreFact(endpoints=options.endpoints, secure=options.secure, latencies_s=latencies_s, version=version)


def _ask_http(options: RendezvousOptions, *, clock: Clock) -> Told:
    """etcd serves /version on the same port; every HTTP answer carries the time, in whole seconds."""
    for endpoint in options.endpoints:
        connection = None
        try:
            connection = _connection(endpoint, options)
            before_s = clock.wall_s()
            connection.request("GET", "/version")
            answer = connection.getresponse()
            now_s = (before_s + clock.wall_s()) / 2
            version = json.loads(answer.read()).get("etcdserver", "")
            date = answer.getheader("Date")
        except (OSError, ValueError, http.client.HTTPException):
            continue  # Whether etcd can be reached the other way, which counts, is found apart.
        finally:
            if connection is not None:
                connection.close()
        at_s = email.utils.parsedate_to_datetime(date).timestamp() + 0.5 if date else None
        return Told(version=str(version), offset_s=None if at_s is None else at_s - now_s)
    return Told()


def _connection(endpoint: str, options: RendezvousOptions) -> http.client.HTTPConnection:
    host, port = split_endpoint(endpoint)
    if not options.secure:
        return http.client.HTTPConnection(host, port, timeout=_HTTP_LIMIT_S)
    context = ssl.create_default_context(cafile=options.ca_file)
    if options.cert_file:
        context.load_cert_chain(options.cert_file, options.key_file)
    return http.client.HTTPSConnection(host, port, timeout=_HTTP_LIMIT_S, context=context)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def _free_port(host: str, wanted: int) -> int | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(wanted, min(wanted + 101, 65536)):
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                return None
            return port
    return None
