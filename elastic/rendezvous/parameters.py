"""Parameters: what torchrun was told about the rendezvous, as options. Pure.

Endpoints come from --rdzv-endpoint, else ETCD_ENDPOINTS, else 127.0.0.1:2379. --rdzv-conf takes the keys of both etcd
backends of torch, under their names, and those of RendezvousOptions; it has no way to write a comma, so that lists
use `;` or `|`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping
from typing import Any, Protocol

from elastic.errors import ConfigError, Problem, UsageError
from elastic.rendezvous.options import RendezvousOptions

DEFAULT_PORT = 2379
_FROM_TORCH = {
    "cacert": "ca_file",
    "ca_cert": "ca_file",
    "cert": "cert_file",
    "ssl_cert": "cert_file",
    "key": "key_file",
    "ssl_cert_key": "key_file",
    "etcd_prefix": "prefix",
    "timeout": "join_timeout_s",
    "join_timeout": "join_timeout_s",
    "last_call_timeout": "first_wait_s",
    "read_timeout": "call_timeout_s",
}
# Of torch's second etcd backend: they tune polls and heartbeats that a lease and a watch do without.
_WITHOUT_USE = frozenset({"close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt"})
_NOT_IN_CONF = frozenset(
    {"job_id", "min_nodes", "max_nodes", "endpoints", "local_address", "secure", "reprobe_s", "bucket_limit"}
)
_FIELDS = {field.name: field for field in dataclasses.fields(RendezvousOptions) if field.name not in _NOT_IN_CONF}


class Parameters(Protocol):
    """The part of torch's RendezvousParameters that is used here."""

    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    config: dict[str, Any]


def options_from(
    parameters: Parameters, *, environ: Mapping[str, str], defaults: Mapping[str, Any] | None = None
) -> RendezvousOptions:
    """Options from torchrun's parameters; `defaults` (fields of RendezvousOptions) hold where --rdzv-conf is silent.

    Raises:
        ConfigError: an endpoint or an option that cannot be understood; all of them at once.
    """
    problems: list[Problem] = []
    endpoints, secure = _endpoints(parameters.endpoint, environ=environ, problems=problems)
    values = dict(defaults or {})
    for name, value in parameters.config.items():
        if name == "protocol":
            secure = _protocol(value, secure=secure, problems=problems)
        elif name in _WITHOUT_USE or (name == "timeout" and not isinstance(value, str)):
            continue  # torchrun adds a timeout of its own, as a number, where the user gave none
        elif (field := _FROM_TORCH.get(name, name)) in _FIELDS:
            _convert(field, value, name=name, values=values, problems=problems)
        else:
            problems.append(Problem(where=f"--rdzv-conf {name}", what=_unknown(name)))
    if problems:
        raise ConfigError(tuple(problems))
    return RendezvousOptions(
        job_id=parameters.run_id,
        min_nodes=parameters.min_nodes,
        max_nodes=parameters.max_nodes,
        endpoints=endpoints,
        local_address=parameters.local_addr,
        secure=secure,
        **values,
    )


def parse_endpoints(text: str) -> tuple[tuple[str, ...], bool]:
    """`host[:port]` items of a list, with the default port added, and whether they are https.

    Raises:
        UsageError: an item that is not an endpoint, or http and https mixed.
    """
    endpoints: list[str] = []
    schemes: set[str] = set()
    for item in filter(None, (part.strip() for part in re.split(r"[,;|]", text))):
        if "@" in item:
            # Not shown: it may hold a password.
            raise UsageError("an endpoint holds '@'; give the login as user and password_file in --rdzv-conf")
        match = re.fullmatch(r"(?:(https?)://)?(\[[0-9A-Fa-f:.%\w]+\]|[^\s/:\[\]]+)(?::([0-9]+))?/?", item)
        if match is None or not 0 < int(match[3] or DEFAULT_PORT) < 65536:
            bare = item.count(":") > 1 and "[" not in item
            hint = f"write [{item}]:{DEFAULT_PORT}" if bare else "expected host, host:port or [v6]:port"
            raise UsageError(f"{item!r} is not an endpoint; {hint}")
        schemes.add(match[1] or "")
        endpoints.append(f"{match[2]}:{match[3] or DEFAULT_PORT}")
    if {"http", "https"} <= schemes:
        raise UsageError(f"{text!r} mixes http and https; all members of a cluster speak one of them")
    return tuple(endpoints), "https" in schemes


def _endpoints(endpoint: str, *, environ: Mapping[str, str], problems: list[Problem]) -> tuple[tuple[str, ...], bool]:
    where = "--rdzv-endpoint" if endpoint else "env ETCD_ENDPOINTS"
    text = endpoint or environ.get("ETCD_ENDPOINTS", "") or f"127.0.0.1:{DEFAULT_PORT}"
    try:
        return parse_endpoints(text)
    except UsageError as error:
        problems.append(Problem(where=where, what=str(error)))
        return (), False


def _protocol(value: Any, *, secure: bool, problems: list[Problem]) -> bool:
    if value not in ("http", "https"):
        problems.append(Problem(where="--rdzv-conf protocol", what=f"{value!r} is neither http nor https"))
    return secure or value == "https"


def _convert(field: str, value: Any, *, name: str, values: dict[str, Any], problems: list[Problem]) -> None:
    kind = {"int": int, "float": float}.get(str(_FIELDS[field].type), str)
    try:
        converted = kind(value)
    except ValueError:
        converted = math.nan
    if kind is not str and not math.isfinite(converted):
        problems.append(Problem(where=f"--rdzv-conf {name}", what=f"{value!r} is not a number"))
        return
    if kind is not str and converted < 0:
        problems.append(Problem(where=f"--rdzv-conf {name}", what=f"{value!r} is less than 0"))
        return
    values[field] = converted


def _unknown(name: str) -> str:
    known = sorted({*_FIELDS, *_FROM_TORCH, "protocol"})
    near = difflib.get_close_matches(name, known, n=1)
    return f"there is no such option; did you mean {near[0]}?" if near else f"unknown; known are {', '.join(known)}"
