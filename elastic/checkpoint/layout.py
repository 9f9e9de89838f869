"""What a checkpoint is called and what its small texts say: build, parse, validate. Pure: no files, no torch.

The layout is that of MindSpore Transformers; what it does not know stands in `elastic.json` (see manifest.py):

    <save_path>/elastic_run.json                      which run this root belongs to (see root.py)
    <save_path>/latest_checkpointed_iteration.txt     the tracker: a decimal number
    <save_path>/iteration_%08d/common.json            progress, in the keys that its reader accepts
                               metadata.json          where each tensor lies (see metadata.py)
                               elastic.json           our manifest
                               [prefix-]{model,opt}-%07d-%07d.safetensors
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

TRACKER = "latest_checkpointed_iteration.txt"
COMMON = "common.json"
METADATA = "metadata.json"
MANIFEST = "elastic.json"
IDENTITY = "elastic_run.json"
LAUNCH = "elastic_launch.json"
LOCK = ".elastic_lock"

MAX_SMALL_BYTES = 1 << 20
"""Bound of tracker, identity and common.json."""
MAX_JSON_BYTES = 256 << 20
"""Bound of metadata.json and the manifest, which grow with the number of tensors."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_ITERATION = re.compile(r"iteration_([0-9]{8,18})")
_SHARD = re.compile(r"(?:(?P<prefix>.+)-)?(?P<kind>model|opt)-(?P<index>\d{7})-(?P<total>\d{7})\.safetensors?")
_TEMP = re.compile(r"\.tmp-(\d+)-(\d+)-[0-9a-z]+")


class ShardKind(enum.StrEnum):
    """The two families of shard files."""

    MODEL = "model"
    OPT = "opt"


class Health(enum.IntEnum):
    """`ckpt_status` of common.json. None there: unknown."""

    NORMAL = 0
    ABNORMAL = 1


@dataclass(frozen=True, kw_only=True)
class ShardName:
    """A parsed shard file name."""

    kind: ShardKind
    index: int
    total: int
    prefix: str


@dataclass(frozen=True, kw_only=True)
class TrackerText:
    """What a tracker says: an iteration, or why it says none."""

    iteration: int | None
    reason: str


def iteration_dir(iteration: int) -> str:
    """Directory name of an iteration."""
    return f"iteration_{iteration:08d}"


def parse_iteration_dir(name: str) -> int | None:
    """The iteration that a directory is named after; None for any other name."""
    match = _ITERATION.fullmatch(name)
    if match is None or iteration_dir(int(match[1])) != name:
        return None
    return int(match[1])


def shard_name(kind: ShardKind, *, index: int, total: int, prefix: str = "") -> str:
    """File name of the shard `index` of `total`."""
    head = f"{prefix}-" if prefix else ""
    return f"{head}{kind}-{index:07d}-{total:07d}.safetensors"


def parse_shard_name(name: str) -> ShardName | None:
    """Read a shard's file name, with either ending of the seed's documents; None for any other name."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return None
    return ShardName(
        kind=ShardKind(match["kind"]),
        index=int(match["index"]),
        total=int(match["total"]),
        prefix=match["prefix"] or "",
    )


def temp_name(*, iteration: int, generation: int, nonce: str) -> str:
    """Directory in which a save is put together: never the name of an older attempt."""
    return f".tmp-{iteration}-{generation}-{nonce}"


def parse_temp_name(name: str) -> int | None:
    """The generation that made a temporary directory; None for any other name."""
    match = _TEMP.fullmatch(name)
    return None if match is None else int(match[2])


def aside_name(name: str, *, nonce: str) -> str:
    """Where a directory goes that stands in the way: kept for a person to look at."""
    return f".aside-{name}-{nonce}"


def parse_aside_name(name: str) -> int | None:
    """The iteration of a directory set aside; None for any other name."""
    parts = name.split("-")
    return parse_iteration_dir(parts[1]) if len(parts) == 3 and parts[0] == ".aside" else None


def parse_trash_name(name: str) -> int | None:
    """The iteration of a directory being deleted; None for any other name."""
    parts = name.split("-")
    return parse_iteration_dir(parts[1]) if len(parts) == 3 and parts[0] == ".trash" else None


def trash_name(name: str, *, nonce: str) -> str:
    """Where a directory goes that is being deleted."""
    return f".trash-{name}-{nonce}"


def spare_name(name: str, *, nonce: str) -> str:
    """Where a directory goes whose files the next save may write over, instead of making new ones."""
    return f".spare-{name}-{nonce}"


def is_spare(name: str) -> bool:
    """Whether `spare_name` made this name of the name of an iteration."""
    parts = name.split("-")
    return len(parts) == 3 and parts[0] == ".spare" and parse_iteration_dir(parts[1]) is not None


def is_trash(name: str) -> bool:
    """Whether `trash_name` made this name of the name of an iteration."""
    return parse_trash_name(name) is not None


def is_safe_name(name: object) -> bool:
    """Whether a name found inside a file may be opened: a plain file name, no path, nothing hidden."""
    return isinstance(name, str) and _SAFE_NAME.fullmatch(name) is not None


def build_tracker(iteration: int) -> bytes:
    """The tracker's text, as the seed writes it: no newline, no padding."""
    return str(iteration).encode()


def parse_tracker(data: bytes) -> TrackerText:
    """Read a tracker. Blank space, CRLF and a byte order mark are forgiven; anything else is no answer."""
    text = data.decode("utf-8-sig", errors="replace").strip()
    if not text:
        return TrackerText(iteration=None, reason="the tracker is empty")
    if not re.fullmatch(r"[0-9]{1,18}", text):
        return TrackerText(iteration=None, reason=f"the tracker says {text[:40]!r}, which is not an iteration number")
    return TrackerText(iteration=int(text), reason=f"the tracker says {int(text)}")


def load_json(data: bytes, *, what: str, limit_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Parse one JSON object of bounded size.

    Raises:
        ValueError: too long, not JSON, a key twice, or not an object; the message begins with `what`.
    """
    if len(data) > limit_bytes:
        raise ValueError(f"{what} has {len(data)} bytes, more than the {limit_bytes} that it may have")
    try:
        plain = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {error}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"{what} is not a JSON object but {type(plain).__name__}")
    return plain


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no key came twice: readers differ in which of two they believe."""
    plain = dict(pairs)
    if len(plain) != len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {double!r:.80} is there twice")
    return plain


def take(plain: dict[str, Any], name: str, kind: type | tuple[type, ...], *, what: str) -> Any:
    """One field of a JSON object, of the type expected.

    Raises:
        ValueError: absent or of another type (a boolean is no number).
    """
    value = plain.get(name)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if name not in plain or not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        expected = " or ".join(each.__name__ for each in kinds)
        raise ValueError(f"{what}: {name!r} is {value!r:.60}, expected {expected}")
    return value


@dataclass(frozen=True, kw_only=True)
class CommonInfo:
    """The seed's common.json: exactly its keys, because its reader refuses any other."""

    epoch_num: int
    step_num: int
    global_step: int
    loss_scale: float | None
    global_batch_size: int
    consumed_samples: int
    ckpt_status: int | None = None
    """Health of the state; None: unknown."""

    def to_bytes(self) -> bytes:
        """The file's text."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=4, allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CommonInfo:
        """Read the file, also one of a version that has other fields: unknown ones are left out, absent ones 0.

        Raises:
            ValueError: not a JSON object of numbers.
        """
        plain = load_json(data, what=COMMON, limit_bytes=MAX_SMALL_BYTES)

        def number(name: str) -> int:
            value = take(plain, name, (int, float), what=COMMON) if plain.get(name) is not None else 0
            if not 0 <= value < 1 << 63:  # also not for nan
                raise ValueError(f"{COMMON}: {name!r} is {value!r:.60}, expected a count")
            return int(value)

        return cls(
            epoch_num=number("epoch_num"),
            step_num=number("step_num"),
            global_step=number("global_step"),
            loss_scale=plain.get("loss_scale"),
            global_batch_size=number("global_batch_size"),
            consumed_samples=number("consumed_samples"),
            ckpt_status=plain.get("ckpt_status"),
        )


@dataclass(frozen=True, kw_only=True)
class CommitRecord:
    """What was committed last: written by one compare-and-set, it is the commit itself."""

    iteration: int
    lineage: str
    manifest_digest: str
    """sha256 of the bytes of elastic.json, in hex."""
    generation: int
    consumed_samples: int

    def to_plain(self) -> dict[str, Any]:
        """JSON types only."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Any) -> CommitRecord:
        """Read back what `to_plain` made.

        Raises:
            ValueError: not a commit record.
        """
        what = "commit record"
        if not isinstance(plain, dict):
            raise ValueError(f"{what} is not an object but {type(plain).__name__}")
        return cls(
            iteration=take(plain, "iteration", int, what=what),
            lineage=take(plain, "lineage", str, what=what),
            manifest_digest=take(plain, "manifest_digest", str, what=what),
            generation=take(plain, "generation", int, what=what),
            consumed_samples=take(plain, "consumed_samples", int, what=what),
        )
