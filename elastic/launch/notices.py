"""Notices: clouds announce on a machine's metadata address that it will be taken away. One thread asks there.

AWS: a token by PUT (IMDSv2), then `spot/instance-action`, which is not there (404) until the machine is to go.
  https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
GCP: `instance/preempted`, FALSE until the machine is to go; asked so that the answer comes when it changes.
  https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urlsplit

from elastic.config.choices import Notices

logger = logging.getLogger(__name__)

ADDRESSES = {Notices.AWS: "http://169.254.169.254", Notices.GCP: "http://metadata.google.internal"}
LIMIT_S = 2.0
"""For one answer, besides the time that it was asked to wait for a change."""
_TOKEN_S = 21600
_MOST_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a metadata address answered."""

    status: int
    body: str
    etag: str = ""


Ask = Callable[[str, str, Mapping[str, str], float], Reply]
"""Method, path, headers and the longest time to wait: the reply. Raises OSError, http.client.HTTPException."""


class Source(Protocol):
    """One cloud's way to say it."""

    def look(self, ask: Ask, *, wait_s: float) -> str:
        """Why this machine is about to go; "" while it is not. May wait for so long where the cloud offers that.

        Raises:
            OSError, http.client.HTTPException: no answer. ValueError: one that is none of this cloud's.
        """
        ...


class Aws:
    """Keeps a token, and takes a new one when it is refused."""

    def __init__(self) -> None:
        self._token = ""

    def look(self, ask: Ask, *, wait_s: float) -> str:
        for _ in range(2):
            if not self._token:
                lasts = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
                self._token = _expect(ask("PUT", "/latest/api/token", lasts, 0.0))
            held = {"X-aws-ec2-metadata-token": self._token}
            reply = ask("GET", "/latest/meta-data/spot/instance-action", held, 0.0)
            if reply.status == http.client.NOT_FOUND:
                return ""
            if reply.status != http.client.UNAUTHORIZED:
                return told_by_aws(_expect(reply))
            self._token = ""  # it has run out
        raise ValueError("its tokens are refused")


class Gcp:
    """Asks so that the answer comes when it is another one than the last."""

    def __init__(self) -> None:
        self._etag = ""

    def look(self, ask: Ask, *, wait_s: float) -> str:
        path = "/computeMetadata/v1/instance/preempted"
        if self._etag:
            path += f"?wait_for_change=true&last_etag={quote(self._etag)}&timeout_sec={max(1, round(wait_s))}"
        reply = ask("GET", path, {"Metadata-Flavor": "Google"}, wait_s if self._etag else 0.0)
        reason = told_by_gcp(_expect(reply))
        self._etag = reply.etag
        return reason


def told_by_aws(body: str) -> str:
    """What an instance action says. Raises ValueError where it is none."""
    try:
        found = json.loads(body)
        return f"AWS will {found['action']} this machine at {found['time']}"
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{body[:100]!r} is no instance action") from error


def told_by_gcp(body: str) -> str:
    """What the value of `preempted` says. Raises ValueError where it is none."""
    match body.strip().upper():
        case "FALSE":
            return ""
        case "TRUE":
            return "GCP preempts this machine"
    raise ValueError(f"{body[:100]!r} is neither TRUE nor FALSE")


def _expect(reply: Reply) -> str:
    if reply.status != http.client.OK:
        raise ValueError(f"status {reply.status}")
    return reply.body


SOURCES: Mapping[Notices, Callable[[], Source]] = {Notices.AWS: Aws, Notices.GCP: Gcp}


class NoticeWatch:
    """Asks until there is a notice: then `on_notice` hears of it, once, from this thread."""

    def __init__(
        self,
        kind: Notices,
        *,
        address: str,
        pause_s: float,
        on_notice: Callable[[str], None],
        wait_s: float = 20.0,
    ) -> None:
        """`address`: "" for the cloud's own. `wait_s`: for a change, where the cloud offers to wait for one."""
        self._kind, self._address = kind, address or ADDRESSES[kind]
        self._source = SOURCES[kind]()
        self._pause_s, self._wait_s, self._on_notice = pause_s, wait_s, on_notice
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._run, name="elastic-notices", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; a question under way is broken off."""
        self._stopping.set()
        with self._lock:
            link = self._connection.sock if self._connection is not None else None
            if link is not None:
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        silent = False
        while not self._stopping.is_set():
            try:
                reason = self._source.look(self._ask, wait_s=self._wait_s)
                silent = False
            except (OSError, ValueError, http.client.HTTPException) as error:
                if not silent and not self._stopping.is_set():
                    logger.warning("%s does not tell of notices for this machine: %s", self._address, error)
                silent, reason = True, ""
            if reason and not self._stopping.is_set():
                self._on_notice(reason)
                return
            self._stopping.wait(self._pause_s)

    def _ask(self, method: str, path: str, headers: Mapping[str, str], wait_s: float) -> Reply:
        """Directly: a proxy that the environment names leads elsewhere."""
        place = urlsplit(self._address)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=LIMIT_S + wait_s)
        try:
            with self._lock:
                if self._stopping.is_set():
                    raise OSError("this node is ending")
                connection.connect()
                self._connection = connection
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES).decode(errors="replace")
            return Reply(status=answer.status, body=body, etag=answer.getheader("ETag", "") or "")
        finally:
            with self._lock:
                self._connection = None
            connection.close()
