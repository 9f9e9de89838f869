"""The manifest of an iteration, `elastic.json`: what belongs to it, how long, with which checksum. Pure.

Only files named here exist for a reader. The manifest carries its own checksum, and the commit record its digest.
"""

from __future__ import annotations

import hashlib
import json
import operator
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from elastic.checkpoint.layout import MANIFEST, CommitRecord, is_safe_name, load_json, take

FORMAT = 3
"""2 added the checksums of chunks and the health of the state, 3 tensors in pieces. Every older one stays readable."""

_COUNTS = ("generation", "iteration", "consumed_samples", "world_size", "global_batch_size")
"""Numbers that a run goes on from: never negative."""


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What a file must be to be the one that was written."""

    size_bytes: int
    crc32: int
    chunks: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    """(end, crc32 of the file up to there) of each chunk; none in format 1. They locate what `crc32` has found."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about an iteration but its tensors."""

    job_id: str
    lineage: str
    generation: int
    iteration: int
    consumed_samples: int
    world_size: int
    global_batch_size: int
    seed: int
    order_version: int
    run_digest: int
    settings: Mapping[str, Any]
    """The resolved configuration of the run, for a reader to compare with its own."""
    values: Mapping[str, Any]
    """JSON state of the tracked objects (see state.py)."""
    has_optimizer: bool
    """False where no_save_optim left everything but the weights out."""
    torch_version: str
    ancestors: tuple[str, ...]
    """Digests of the manifests that were committed on the way to this state, oldest first; the last ones only."""
    files: Mapping[str, FileFacts]
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the run knows of its data: its order, fingerprint, slots. Nothing where it was saved without."""
    chunk_bytes: int = 0
    """No chunk of a file is longer; 0: no chunks, as in format 1."""
    ckpt_status: int | None = None
    """Health of the state, as in common.json: 0 normal, 1 abnormal, None unknown."""

    def to_bytes(self) -> bytes:
        """The file's text. Raises ValueError where settings or values are not JSON."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain["files"] = {
            name: [facts.size_bytes, facts.crc32, [list(chunk) for chunk in facts.chunks]]
            for name, facts in self.files.items()
        }
        try:
            return _wrap({"format": FORMAT, **plain})
        except TypeError as error:
            raise ValueError(f"{MANIFEST} cannot be written: {error}") from error

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read and check a manifest.

        Raises:
            ValueError: altered, of a newer format, or not a manifest.
        """
        body = _unwrap(data)
        if (version := take(body, "format", int, what=MANIFEST)) > FORMAT:
            raise ValueError(f"{MANIFEST} has format {version}, this version reads up to {FORMAT}: use a newer version")
        body.setdefault("data", {})
        body = {"chunk_bytes": 0, "ckpt_status": None, **body} if version < 2 else body
        kinds: dict[str, type | tuple[type, ...]] = {
            "int": int,
            "str": str,
            "bool": bool,
            "tuple[str, ...]": list,
            "int | None": (int, type(None)),
        }
        plain: dict[str, Any] = {}
        for each in fields(cls):
            plain[each.name] = take(body, each.name, kinds.get(str(each.type), dict), what=MANIFEST)
            if each.name in _COUNTS and not 0 <= plain[each.name] < 1 << 63:
                raise ValueError(f"{MANIFEST}: {each.name!r} is {plain[each.name]!r:.60}, expected a count")
        plain["files"] = {name: _facts(name, value) for name, value in plain["files"].items()}
        plain["ancestors"] = tuple(str(each) for each in plain["ancestors"])
        return cls(**plain)


def digest(data: bytes) -> str:
    """What a commit record holds of the manifest's bytes."""
    return hashlib.sha256(data).hexdigest()


def record_of(manifest: Manifest, data: bytes) -> CommitRecord:
    """The commit record that makes this manifest's iteration count."""
    return CommitRecord(
        iteration=manifest.iteration,
        lineage=manifest.lineage,
        manifest_digest=digest(data),
        generation=manifest.generation,
        consumed_samples=manifest.consumed_samples,
    )


def _facts(name: object, value: object) -> FileFacts:
    if not is_safe_name(name):
        raise ValueError(f"{MANIFEST} names the file {name!r:.80}, which is not a plain file name")
    match value:
        case [int(size_bytes), int(crc32)] if size_bytes >= 0:
            return FileFacts(size_bytes=size_bytes, crc32=crc32)
        case [int(size_bytes), int(crc32), list(chunks)] if size_bytes >= 0:
            pairs = _pairs(chunks)
            if pairs is not None and (not pairs or pairs[-1] == (size_bytes, crc32)):
                return FileFacts(size_bytes=size_bytes, crc32=crc32, chunks=pairs)
    raise ValueError(f"{MANIFEST}: facts of {name!r} are {value!r:.60}, expected [size, crc32, chunks]")


def _pairs(chunks: list[Any]) -> tuple[tuple[int, int], ...] | None:
    """(end, checksum) of chunks that follow one another; None where they are not that. There is one for each MB."""
    try:
        pairs = tuple((end, crc32) for end, crc32 in chunks)
    except (TypeError, ValueError):
        return None
    if not {type(each) for pair in pairs for each in pair} <= {int}:
        return None
    ends = [0, *(end for end, _ in pairs)]
    return pairs if all(map(operator.lt, ends, ends[1:])) else None


def _wrap(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f'{{"crc32":{zlib.crc32(text.encode())},"manifest":{text}}}\n'.encode()


def _unwrap(data: bytes) -> dict[str, Any]:
    body: dict[str, Any] = take(load_json(data, what=MANIFEST), "manifest", dict, what=MANIFEST)
    # Written again it must give the same bytes, checksum included: so no bit of it can have changed.
    try:
        if _wrap(body) == data:
            return body
    except ValueError:
        pass  # we write no nan, no half of a surrogate pair
    raise ValueError(f"{MANIFEST} is not what was written: its checksum does not match")
