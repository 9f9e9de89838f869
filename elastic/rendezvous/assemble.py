"""Assemble: from torchrun's parameters to a handler with its coordinator, store and stores. Starts nothing."""

from __future__ import annotations

import dataclasses
import math
import platform
import socket
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.elastic.rendezvous.api import RendezvousParameters

from elastic import __version__
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.config.model import Settings
from elastic.events import Emit, Event
from elastic.lease import LeasePage
from elastic.rendezvous.address import address_towards
from elastic.rendezvous.coordinator import AgentIdentity, Coordinator
from elastic.rendezvous.drain import DrainWatch
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.handler import EtcdV3Handler
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import KeyValueStore
from elastic.rendezvous.lease_keeper import KeeperProcess
from elastic.rendezvous.options import RendezvousOptions
from elastic.rendezvous.parameters import options_from
from elastic.rendezvous.speech import spoken
from elastic.rendezvous.timed import OnRequest, TimedStore
from elastic.rendezvous.torch_store import TorchStores


def _nothing() -> None:
    """The default for `on_change`."""


def _ignore(event: Event) -> None:
    """The default for `emit`."""


def assemble(
    parameters: RendezvousParameters,
    *,
    environ: Mapping[str, str],
    settings: Settings | None = None,
    job_id: str | None = None,
    launch: str = "",
    node: str | None = None,
    named: bool = False,
    agent: str | None = None,
    numerics: str = "",
    root_generation: int = 0,
    clock: Clock = SYSTEM_CLOCK,
    on_change: Callable[[], None] = _nothing,
    emit: Emit = _ignore,
    page: LeasePage | None = None,
    on_drain: Callable[[str], None] | None = None,
    on_request: OnRequest | None = None,
) -> EtcdV3Handler:
    """A handler for these parameters; --rdzv-conf beats the settings. The number of workers is told at `start`.

    With a `page` the lease is kept by a process of its own too, and the page tells the workers how long it holds.
    `on_drain` hears why a person wants this node to leave, `on_request` how long etcd takes.

    Raises:
        ConfigError: endpoints or options that cannot be understood. StoreUnavailable: no way to any endpoint.
    """
    options = options_from(parameters, environ=environ, defaults=_defaults(settings) if settings else None)
    options = options if job_id is None else dataclasses.replace(options, job_id=job_id)
    identity = AgentIdentity(
        agent=agent or uuid.uuid4().hex,
        node=node or socket.gethostname(),
        address=options.local_address or address_towards(options.endpoints),
        fingerprint=f"elastic {__version__}, torch {torch.__version__}, python {platform.python_version()}",
        numerics=numerics,
        speaks=spoken(torch.__version__),
        launch=launch,
        root_generation=root_generation,
        named=named,
    )
    etcd = EtcdStore(options, clock=clock)
    store = etcd if on_request is None else TimedStore(etcd, clock=clock, on_request=on_request)
    coordinator = Coordinator(
        store,
        options=options,
        identity=identity,
        stores=TorchStores(),
        clock=clock,
        on_change=on_change,
        emit=emit,
        page=page,
        keeper=None if page is None else KeeperProcess(options, page=page, environ=environ),
    )
    return EtcdV3Handler(
        coordinator,
        backend=parameters.backend,
        endpoint=",".join(options.endpoints),
        close_store=store.close,
        drain=None if on_drain is None else _drain_watch(store, options, identity, on_drain),
    )


def _drain_watch(
    store: KeyValueStore, options: RendezvousOptions, identity: AgentIdentity, on_drain: Callable[[str], None]
) -> DrainWatch:
    keys = Keys.of(prefix=options.prefix, job_id=options.job_id)
    return DrainWatch(store, keys=keys, agent=identity.agent, on_drain=on_drain)


def _defaults(settings: Settings) -> dict[str, Any]:
    """The settings by the names of the options. A lease lasts whole seconds."""
    values = dataclasses.asdict(settings.rendezvous) | {"no_progress_limit": settings.job.no_progress_limit}
    return values | {"ttl_s": math.ceil(settings.rendezvous.ttl_s)}
