"""Link to etcd: one gRPC channel at a time to one of several endpoints, with deadlines, failover, TLS and login.

The only importer of the client library and of gRPC (0.5 s), which it loads when the first link is made. Of the
library it uses the message types and stubs alone: its own wrappers neither fail over in time nor mend a watch.
"""

from __future__ import annotations

import importlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import StoreError, StoreRefused, StoreUnavailable, UsageError
from elastic.rendezvous.errors import LeaseEnded
from elastic.rendezvous.options import RendezvousOptions

_log = logging.getLogger(__name__)
LOOK_UP_S = 1.0
"""From one look of gRPC's waiting threads at what they wait for to the next, if nobody wakes them."""
_RETRY_S = 0.1
_SHORTEST_TRY_S = 0.2
# Each member restarted in the meantime may ask for another.
_MOST_LOGINS = 3
_NEEDS_LEADER = ("hasleader", "true")
_CHANNEL_OPTIONS = (
    # Fresh channels must not inherit the back-off of the one that failed.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Its name notwithstanding, how long a connection may take to come about: a far etcd needs several round trips.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # etcd answers pings more frequent than 5 s with "too many pings".
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.max_receive_message_length", -1),
    # A proxy meant for the web cannot reach a job's store.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, kw_only=True)
class Answered:
    """etcd's answer. `doubtful`: an earlier try broke, so that it may have been done already."""

    message: Any
    doubtful: bool


class Unanswered(Exception):
    """A stream did not bring what was awaited in time."""


def drain(requests: queue.SimpleQueue[Any]) -> Iterator[Any]:
    """What gRPC sends on a stream, up to None: it must not end before the stream does, or etcd ends that."""
    while (request := requests.get()) is not None:
        yield request


class EtcdLink:
    """Calls etcd; each call goes to the endpoint in use, and on to the next where it does not answer. Thread-safe."""

    def __init__(self, options: RendezvousOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options, self._clock = options, clock
        self._grpc: Any = _load("grpc")
        _sleep_well()
        self.rpc: Any = _load("etcd3.etcdrpc")
        self._credentials = _tls(self._grpc, options) if options.secure else None
        self._lock = threading.Lock()
        self._number = 0
        self._channel: Any = None
        self._stubs: dict[str, tuple[Any, Any]] = {}
        self._token: str | None = None
        self._closed = False

    @property
    def endpoint(self) -> str:
        """The endpoint in use."""
        return self._options.endpoints[self._number % len(self._options.endpoints)]

    def call(self, stub: str, method: str, request: Any, *, timeout_s: float | None = None) -> Any:
        """One request, answered within `timeout_s` (default call_timeout_s) by some endpoint.

        Raises:
            StoreUnavailable: none did; whether the request was done is unknown. StoreRefused, LeaseEnded, StoreError.
        """
        return self.ask(stub, method, request, timeout_s=timeout_s).message

    def ask(self, stub: str, method: str, request: Any, *, timeout_s: float | None = None) -> Answered:
        """Like `call`, and tells whether an earlier try may have been done without an answer reaching us."""
        return self.attempt(stub, lambda chosen, **how: getattr(chosen, method)(request, **how), timeout_s=timeout_s)

    def open_stream(self, stub: str, method: str, requests: Iterator[Any]) -> Any:
        """Begin a stream on the channel in use. Its errors are `rpc_error`; `explain` says what they mean."""
        channel, _number = self._current()
        self._be_logged_in(channel, limit_s=self._options.call_timeout_s)
        return getattr(self._stub(stub, channel), method)(requests, metadata=self._metadata())

    @property
    def rpc_error(self) -> type[Exception]:
        """What a stream raises when it breaks."""
        error: type[Exception] = self._grpc.RpcError
        return error

    def explain(self, error: Any) -> str:
        """A broken call in words."""
        return f"{self.endpoint}: {error.code().name}: {error.details() or 'no details'}"

    def forget_token(self) -> None:
        """Log in anew with the next request: the token may have run out."""
        self._token = None

    def next_endpoint(self) -> None:
        """Leave the channel in use, with all its streams; what comes next uses the next endpoint."""
        self._leave(self._number)

    def close(self) -> None:
        """Call no more; calls under way and streams break."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def attempt(self, stub: str, once: Callable[..., Any], *, timeout_s: float | None = None) -> Answered:
        """Do `once(stub, timeout=…, metadata=…)`, and again at the next endpoint where it breaks or raises Unanswered.

        Raises like `call`.
        """
        limit_s = self._options.call_timeout_s if timeout_s is None else timeout_s
        deadline_s = self._clock.monotonic_s() + limit_s
        logins = 0
        doubtful = False
        last = ""
        while True:
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0 or self._closed:
                raise self._unavailable(limit_s, last or "no time was left")
            channel, number = self._current()
            try:
                self._be_logged_in(channel, limit_s=left_s)
                message = once(self._stub(stub, channel), timeout=self._try_s(left_s), metadata=self._metadata())
                return Answered(message=message, doubtful=doubtful)
            except self._grpc.RpcError as error:
                last = self.explain(error)
                if self._is_stale_token(error) and logins < _MOST_LOGINS:
                    self.forget_token()
                    logins += 1
                elif self._is_transient(error):
                    doubtful = True
                    self._leave(number)
                    self._clock.sleep(min(_RETRY_S, max(0.0, left_s)))
                else:
                    self._refuse(error)
            except Unanswered as error:
                last, doubtful = f"{self.endpoint}: {error}", True
                self._leave(number)
            except ValueError as error:
                # Another thread left the channel in the meantime: gRPC says "closed channel", or "Channel closed!".
                if "closed" not in str(error):
                    raise
                last = last or str(error)

    def _current(self) -> tuple[Any, int]:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the link to etcd is closed")
            if self._channel is None:
                target = self.endpoint
                if self._credentials is None:
                    self._channel = self._grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)
                else:
                    self._channel = self._grpc.secure_channel(target, self._credentials, options=_CHANNEL_OPTIONS)
            return self._channel, self._number

    def _leave(self, number: int) -> None:
        with self._lock:
            if number != self._number:
                return
            channel, self._channel = self._channel, None
            self._number += 1
        if channel is not None:
            channel.close()

    def _stub(self, name: str, channel: Any) -> Any:
        """The stub of one service; making one costs as much as half a call, so it is kept with its channel."""
        made_for, stub = self._stubs.get(name, (None, None))
        if made_for is not channel:
            stub = getattr(self.rpc, f"{name}Stub")(channel)
            self._stubs[name] = (channel, stub)
        return stub

    def _try_s(self, left_s: float) -> float:
        """An endpoint gets half the time, so that there is time for another."""
        return min(left_s, max(_SHORTEST_TRY_S, self._options.call_timeout_s / 2))

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        # A member that has lost its cluster must say so at once: its watches would stay silent for ever.
        return (_NEEDS_LEADER, ("token", self._token)) if self._token else (_NEEDS_LEADER,)

    def _be_logged_in(self, channel: Any, *, limit_s: float) -> None:
        if self._options.user is not None and self._token is None:
            self._token = self._log_in(channel, limit_s=limit_s)

    def _log_in(self, channel: Any, *, limit_s: float) -> str:
        path = self._options.password_file
        try:
            password = Path(path).read_text().strip() if path else ""
        except OSError as error:
            raise UsageError(f"the password file {path} cannot be read: {error.strerror}") from error
        request = self.rpc.AuthenticateRequest(name=self._options.user, password=password)
        try:
            token: str = self._stub("Auth", channel).Authenticate(request, timeout=self._try_s(limit_s)).token
        except self._grpc.RpcError as error:
            if "authentication is not enabled" not in (error.details() or ""):
                raise
            _log.warning("etcd at %s has no users enabled; going on without a login", self.endpoint)
            return ""
        return token

    def _is_stale_token(self, error: Any) -> bool:
        details = error.details() or ""
        return self._options.user is not None and ("invalid auth token" in details or "auth store is old" in details)

    def _is_transient(self, error: Any) -> bool:
        codes = self._grpc.StatusCode
        return error.code() in {
            codes.UNAVAILABLE,
            codes.DEADLINE_EXCEEDED,
            codes.CANCELLED,
            codes.INTERNAL,
            codes.RESOURCE_EXHAUSTED,
            codes.ABORTED,
        }

    def _refuse(self, error: Any) -> NoReturn:
        details = error.details() or ""
        if "lease not found" in details:
            raise LeaseEnded(f"etcd at {self.endpoint}: {details}") from error
        codes = self._grpc.StatusCode
        if error.code() in {codes.PERMISSION_DENIED, codes.UNAUTHENTICATED} or "user" in details:
            who = f"user {self._options.user!r}" if self._options.user else "no user"
            raise StoreRefused(
                f"etcd at {self.endpoint} refused ({details}), asked as {who} below {self._options.prefix}; "
                "check user and password_file in --rdzv-conf, and the rights of that user"
            ) from error
        raise StoreError(f"etcd at {self.explain(error)}") from error

    def _unavailable(self, limit_s: float, last: str) -> StoreUnavailable:
        scheme = "https" if self._options.secure else "http"
        tried = ", ".join(f"{scheme}://{endpoint}" for endpoint in self._options.endpoints)
        return StoreUnavailable(
            f"etcd did not answer within {limit_s:g} s; tried {tried} (last: {last}); start etcd there, or name where "
            "it is with --rdzv-endpoint or ETCD_ENDPOINTS"
        )


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, TypeError) as error:
        # TypeError: protobuf's way to say that generated code is too old for it, as that of etcd3 0.12.0 is.
        raise UsageError(
            f"the module {name} cannot be used ({type(error).__name__}: {str(error)[:200]}); "
            "install the package cslab-etcd3, and none other that brings a module etcd3"
        ) from error


def _sleep_well() -> None:
    """Have gRPC look up once a second in each wait of a thread, not ten times: half of what an agent at rest costs.

    It is woken by what it waits for; looking up was for older Pythons, in which ^C could not end a wait. A private
    place: where it is another one nothing changes.
    """
    common: Any = importlib.import_module("grpc._common")
    if hasattr(common, "MAXIMUM_WAIT_TIMEOUT"):
        common.MAXIMUM_WAIT_TIMEOUT = LOOK_UP_S


def _tls(grpc: Any, options: RendezvousOptions) -> Any:
    def read(path: str | None) -> bytes | None:
        try:
            return Path(path).read_bytes() if path else None
        except OSError as error:
            raise UsageError(f"the TLS file {path} cannot be read: {error.strerror}") from error

    return grpc.ssl_channel_credentials(read(options.ca_file), read(options.key_file), read(options.cert_file))
