"""Access: who may read an exporter's metrics. TLS, client certificates, and users with passwords from a file.

Files are read again when they change, so that certificates and passwords can be replaced while a job runs. Probes
(/livez and its kin) stay open to all, since a kubelet has neither certificate nor password; they then tell no reasons.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import logging
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from elastic.errors import UsageError

logger = logging.getLogger(__name__)

_MOST_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class Access:
    """Paths; "" where nothing of the kind is wanted. `users_file` has lines of `user:password`."""

    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    users_file: str = ""

    @property
    def secure(self) -> bool:
        """Whether the exporter speaks TLS."""
        return bool(self.cert_file)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why somebody may not read the metrics."""

    status: HTTPStatus
    text: str


class Guard:
    """Wraps connections in TLS and judges requests. Safe from any thread."""

    def __init__(self, access: Access, *, host: str) -> None:
        """Read everything once, so that what cannot work is known at the start.

        Raises:
            UsageError: a file is missing, unreadable or no such thing, or passwords would travel in the clear.
        """
        self._access = access
        if not access.secure and (access.client_ca_file or access.key_file):
            raise UsageError("metrics.client_ca and metrics.tls_key need metrics.tls_cert")
        if access.users_file and not access.secure and not _is_loopback(host):
            raise UsageError(
                f"metrics.users_file: passwords would go over the network in the clear from {host}; set"
                " metrics.tls_cert and metrics.tls_key, or listen on 127.0.0.1 only"
            )
        self._stamp = self._stamps()
        self._context = self._load() if access.secure else None
        if access.users_file:
            _users(access.users_file)

    @property
    def open(self) -> bool:
        """Whether anybody who can connect may read."""
        return not (self._access.client_ca_file or self._access.users_file)

    def wrap(self, connection: socket.socket) -> socket.socket:
        """The same connection, in TLS where that is wanted; its handshake is still to be done."""
        if self._context is None:
            return connection
        return self._fresh().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def judge(self, connection: socket.socket, authorization: str) -> Refusal | None:
        """Whether this client, with this Authorization header, may read; None: it may."""
        if self._access.client_ca_file and not (isinstance(connection, ssl.SSLSocket) and connection.getpeercert()):
            return Refusal(status=HTTPStatus.FORBIDDEN, text="a client certificate is needed")
        if not self._access.users_file:
            return None
        try:
            users = _users(self._access.users_file)
        except UsageError as error:
            logger.warning("nobody may read the metrics now: %s", error)
            return Refusal(status=HTTPStatus.SERVICE_UNAVAILABLE, text="the users cannot be read just now")
        if _knows(users, authorization):
            return None
        return Refusal(status=HTTPStatus.UNAUTHORIZED, text="a user and a password are needed")

    def _fresh(self) -> ssl.SSLContext:
        assert self._context is not None  # asked by who looked
        stamp = self._stamps()
        if stamp != self._stamp:
            try:
                self._context, self._stamp = self._load(), stamp
            except UsageError as error:
                logger.warning("the old certificate of the exporter stays in use: %s", error)
                self._stamp = stamp
        return self._context

    def _load(self) -> ssl.SSLContext:
        access = self._access
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(access.cert_file, access.key_file or None, password=_no_password)
            if access.client_ca_file:
                context.load_verify_locations(access.client_ca_file)
                context.verify_mode = ssl.CERT_OPTIONAL  # and demanded of who asks for the metrics
        except (OSError, ValueError) as error:
            files = ", ".join(filter(None, (access.cert_file, access.key_file, access.client_ca_file)))
            raise UsageError(f"the exporter cannot speak TLS with {files}: {error}") from error
        return context

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        found = []
        for path in filter(None, (self._access.cert_file, self._access.key_file, self._access.client_ca_file)):
            try:
                status = os.stat(path)
            except OSError:
                continue  # being replaced; or never there, which `_load` tells
            found.append((status.st_mtime_ns, status.st_ino))
        return tuple(found)


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that is not, readable by this user only")


def _users(path: str) -> dict[str, str]:
    try:
        with Path(path).open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(_MOST_BYTES)
    except OSError as error:
        raise UsageError(f"metrics.users_file {path} cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"metrics.users_file {path} can be read by others; chmod 600 {path}")
    lines = data.decode(errors="replace").splitlines()
    found = dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
    if not found or not all(user and password for user, password in found.items()):
        raise UsageError(f"metrics.users_file {path} has no users; write lines of user:password into it")
    return found


def _knows(users: dict[str, str], authorization: str) -> bool:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return False
    try:
        given = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return False
    # All are compared, each in a time that tells nothing of it.
    found = [hmac.compare_digest(given, f"{user}:{password}".encode()) for user, password in users.items()]
    return any(found)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name
