"""Whose root this is: the identity file that ties a save_path to one run."""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from elastic.checkpoint.layout import IDENTITY, LAUNCH, MAX_SMALL_BYTES, load_json, parse_iteration_dir, take
from elastic.checkpoint.locating import is_url, storage_for
from elastic.checkpoint.storage import Storage
from elastic.errors import CheckpointError, RunMismatch, UsageError

_UNNAMED = (None, "", "none")
"""What torchrun's job id is when nobody gave one."""


_PLAIN = {"job_id", "lineage"}
"""The keys where there is no checksum: as early versions and people write it."""


@dataclass(frozen=True, kw_only=True)
class RootIdentity:
    """The run that a root belongs to."""

    job_id: str
    lineage: str


def claim(
    root: str,
    *,
    job_id: str | None,
    any_launch: bool = False,
    storage: Storage | None = None,
    nonce: Callable[[], str] = lambda: secrets.token_hex(8),
) -> RootIdentity:
    """Make the root this job's, or find that it is already. Processes that ask at once get the same answer.

    A job id of None, "" or "none" takes over the stored one, or a new random one where there is none;
    so does any other with `any_launch`, if launches leave their mark here (launches.py) or nothing was saved yet.

    Raises:
        UsageError: the root cannot be made or written, or its identity file cannot be read.
        RunMismatch: the root belongs to another run.
    """
    if not root:
        raise UsageError("checkpoint.save_path is empty: name a directory, or set enable_save: False")
    storage = storage or storage_for(root)
    _prepare(root, storage)
    path = os.path.join(root, IDENTITY)
    if not _is_there(path, storage):
        _refuse_foreign(root, storage)
        fresh = RootIdentity(job_id=nonce() if job_id in _UNNAMED else str(job_id), lineage=nonce())
        try:
            storage.create(path, identity_bytes(fresh))
            if not is_url(root):
                storage.sync_dir(os.path.dirname(os.path.abspath(root)))  # the root's own name is new, too
        except OSError as error:
            raise _not_writable(root, str(error)) from error
    stored = _read(path, storage)  # what stands there counts, whoever was first
    foreign = job_id not in _UNNAMED and stored.job_id != job_id
    if foreign and not (any_launch and _is_launched_anew(root, storage)):
        raise RunMismatch(
            f"{root} belongs to the run {stored.job_id!r}, and this one is {job_id!r}. "
            f"To continue that run, start with --rdzv-id={stored.job_id}; "
            "to begin another one, choose another checkpoint.save_path."
        )
    return stored


def named_launch(job_id: str | None, identity: RootIdentity) -> str:
    """The name of a launch with this job id, in a root of this identity."""
    return identity.job_id if job_id in _UNNAMED else str(job_id)


def identity_of(root: str) -> RootIdentity:
    """Whose root it is. Raises UsageError where it is nobody's, or cannot be read."""
    return _read(os.path.join(root, IDENTITY), storage_for(root))


def write_problem(root: str, *, access: Callable[[str, int], bool] = os.access) -> str | None:
    """Why nothing can be written under an existing root, without writing to find out; None if it can."""
    if not os.path.isdir(root):
        return "it is not a directory"
    if not access(root, os.W_OK | os.X_OK):
        return "it is not writable by this user"
    return None


def _prepare(root: str, storage: Storage) -> None:
    try:
        storage.make_dir(root)
    except OSError as error:
        raise UsageError(
            f"checkpoint.save_path {root} cannot be created: {error.strerror or error}. "
            "Name a directory that this user may create, or one that is there and writable."
        ) from error
    if not is_url(root) and (problem := write_problem(root)) is not None:
        raise _not_writable(root, problem)


def _is_there(path: str, storage: Storage) -> bool:
    try:
        return storage.size_bytes(path) is not None
    except OSError as error:
        # A store over a network may be there again at the next start.
        kind = CheckpointError if is_url(path) and not isinstance(error, PermissionError) else UsageError
        raise kind(f"{path} cannot be looked for: {error}. Check checkpoint.save_path and access to it.") from error


def _not_writable(root: str, problem: str) -> UsageError:
    return UsageError(
        f"checkpoint.save_path {root} cannot be written: {problem}. "
        "Give this user write permission and room there, or choose another checkpoint.save_path."
    )


def _is_launched_anew(root: str, storage: Storage) -> bool:
    """Whether another id may go on here. In one of several private directories it could not be told who is at work."""
    return _is_there(os.path.join(root, LAUNCH), storage) or not _iterations(root, storage)


def _iterations(root: str, storage: Storage) -> list[str]:
    return [name for name in storage.names(root) if parse_iteration_dir(name) is not None]


def _refuse_foreign(root: str, storage: Storage) -> None:
    if iterations := _iterations(root, storage):
        raise RunMismatch(
            f"{root} holds iterations ({iterations[-1]}) but no {IDENTITY}: another run wrote them. "
            "To start from them, set checkpoint.load_path to it and checkpoint.save_path to another directory; "
            "otherwise move them away first."
        )


def identity_bytes(identity: RootIdentity) -> bytes:
    """The text of the identity file, with a checksum of its own."""
    plain: dict[str, Any] = asdict(identity)
    text = json.dumps(plain, indent=1)
    return json.dumps({**plain, "crc32": zlib.crc32(text.encode())}, indent=1).encode()


def _read(path: str, storage: Storage) -> RootIdentity:
    try:
        data = storage.read(path)
        plain = load_json(data, what=IDENTITY, limit_bytes=MAX_SMALL_BYTES)
        identity = RootIdentity(
            job_id=take(plain, "job_id", str, what=IDENTITY), lineage=take(plain, "lineage", str, what=IDENTITY)
        )
        if plain.keys() != _PLAIN and identity_bytes(identity) != data:
            raise ValueError(f"{IDENTITY} is not what was written: its checksum does not match")
        return identity
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}. It says which run the directory belongs to; job_id and lineage also "
            f"stand in the elastic.json of each iteration: write these two back as a JSON object, or choose another "
            "checkpoint.save_path."
        ) from error
