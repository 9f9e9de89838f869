"""Looking at checkpoints without torch: what a root holds, what an iteration says, whether every byte is right."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elastic.checkpoint.checksums import fault_of
from elastic.checkpoint.header import TensorEntry, read_header
from elastic.checkpoint.huggingface import INDEX, is_huggingface, parse_index
from elastic.checkpoint.layout import (
    COMMON,
    MANIFEST,
    MAX_JSON_BYTES,
    MAX_SMALL_BYTES,
    METADATA,
    TRACKER,
    CommonInfo,
    parse_shard_name,
)
from elastic.checkpoint.manifest import FileFacts, Manifest
from elastic.checkpoint.metadata import parse_metadata
from elastic.checkpoint.policy import Found, candidates
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.stream import read_pieces
from elastic.checkpoint.survey import read_small, survey
from elastic.errors import CheckpointDamaged, NothingToRestore


@dataclass(frozen=True, kw_only=True)
class Row:
    """One iteration of a root. `state`: next (a restart without a commit record takes it), whole, foreign, damaged,
    aside or unhealthy."""

    place: str
    iteration: int
    state: str
    consumed_samples: int
    generation: int
    lineage: str | None
    total_bytes: int
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class FileVerdict:
    """One file of an iteration; `problem` is None where it is what it should be."""

    place: str
    name: str
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor: the shape of the whole, and the file that holds it or, in pieces, `<first file> and N more`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file_name: str


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What one iteration says of itself. `facts`: the manifest without files and values, or common.json alone."""

    directory: str
    facts: dict[str, Any]
    objects: dict[str, str]
    """Tracked objects and their kinds; empty where we did not write it."""
    ties: dict[str, str]
    tensors: tuple[Tensor, ...]


def list_root(root: str, *, storage: Storage) -> tuple[Row, ...]:
    """Every iteration of a root, oldest first.

    Raises:
        NothingToRestore: nothing there looks like one.
    """
    seen = survey(root, storage=storage)
    if not seen.found:
        raise NothingToRestore(f"{root} holds no iteration_* directory; name a checkpoint.save_path")
    choice = candidates(None, tracker=seen.tracker.iteration, found=seen.found)
    best = choice.candidates[0].found if choice.candidates else None
    return tuple(_row(root, each, each is best, storage) for each in sorted(seen.found, key=_age))


def locate(path: str, *, storage: Storage) -> str:
    """The directory of one iteration: the path itself, or the one of a root that a restart would take.

    Raises:
        NothingToRestore: neither an iteration nor a root with a usable one.
    """
    if _is_iteration(path, storage):
        return path
    seen = survey(path, storage=storage)
    choice = candidates(None, tracker=seen.tracker.iteration, found=seen.found)
    if not choice.candidates:
        faults = "; ".join(f"{each.found.place}: {each.reason}" for each in choice.passed[-4:])
        raise NothingToRestore(
            f"{path} is no iteration and holds none that can be used. {faults or 'Nothing is there'}"
        )
    return os.path.join(path, choice.candidates[0].found.place)


def show(directory: str, *, storage: Storage) -> Shown:
    """What an iteration says of itself, its tensors by the heads of its files.

    Raises:
        CheckpointDamaged: something there cannot be read.
    """
    try:
        manifest = _manifest(directory, storage)
        tensors = tuple(_tensors(directory, storage))
        if manifest is None:
            return Shown(directory=directory, facts=_foreign(directory, storage), objects={}, ties={}, tensors=tensors)
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(f"{directory}: {error}") from error
    hidden = ("files", "values", "ancestors", "settings")
    facts = {name: value for name, value in vars(manifest).items() if name not in hidden}
    kinds = {key: str(each.get("kind")) for key, each in manifest.values.get("objects", {}).items()}
    ties = dict(manifest.values.get("ties", {}))
    return Shown(directory=directory, facts=facts, objects=kinds, ties=ties, tensors=tensors)


def _tensors(directory: str, storage: Storage) -> Iterator[Tensor]:
    shapes = {name: each.global_shape for (_, name), each in read_pieces(directory, storage=storage).items()}
    entries = itertools.groupby(tensor_entries(directory, storage=storage), key=lambda each: each[1].name)
    for tensor, found in entries:
        (name, entry), *more = found
        place = f"{name} and {len(more)} more" if more else name
        yield Tensor(name=tensor, dtype=entry.dtype, shape=shapes.get(tensor, entry.shape), file_name=place)


def tensor_entries(directory: str, *, storage: Storage) -> Iterator[tuple[str, TensorEntry]]:
    """(file, tensor or piece of one) for all that an iteration holds, by name and file. Files that its manifest does
    not name are left out.

    Raises:
        ValueError, OSError: a file that cannot be read.
    """
    manifest = _manifest(directory, storage)
    names = storage.names(directory) if manifest is None else sorted(manifest.files)
    found = [
        (name, entry)
        for name in names
        if name.endswith((".safetensors", ".safetensor"))
        for entry in read_header(os.path.join(directory, name), storage=storage)
    ]
    yield from sorted(found, key=lambda each: each[1].name)


def verify(path: str, *, storage: Storage) -> tuple[FileVerdict, ...]:
    """Read every byte of an iteration, or of every iteration of a root, and compare with what was written.

    Raises:
        NothingToRestore: there is nothing to verify.
    """
    if _is_iteration(path, storage):
        return tuple(_verify_iteration(path, storage))
    seen = survey(path, storage=storage)
    if not seen.in_place:
        raise NothingToRestore(f"{path} is no iteration and holds none; name a checkpoint.save_path or an iteration_*")
    verdicts = [each for found in seen.in_place for each in _verify_iteration(os.path.join(path, found.place), storage)]
    if seen.tracker.iteration not in {found.iteration for found in seen.in_place}:
        verdicts.append(FileVerdict(place=".", name=TRACKER, problem=f"{seen.tracker.reason}: no such iteration"))
    return tuple(verdicts)


def _verify_iteration(directory: str, storage: Storage) -> Iterator[FileVerdict]:
    place = os.path.basename(directory.rstrip("/"))
    try:
        manifest = _manifest(directory, storage)
    except (OSError, ValueError) as error:
        yield FileVerdict(place=place, name=MANIFEST, problem=str(error))
        return
    if manifest is None:
        yield from _verify_foreign(directory, place, storage)
        return
    yield FileVerdict(place=place, name=MANIFEST, problem=_name_problem(place, manifest))
    for name, facts in sorted(manifest.files.items()):
        yield FileVerdict(place=place, name=name, problem=_file_problem(os.path.join(directory, name), facts, storage))


def _file_problem(path: str, facts: FileFacts, storage: Storage) -> str | None:
    try:
        found = storage.facts(path)
        if found == facts:
            return None
        if found.size_bytes != facts.size_bytes:
            return f"has {found.size_bytes} bytes, expected {facts.size_bytes}"
        # Only a damaged file is held in memory, to find where the damage lies.
        return fault_of(storage.read(path), facts, name="it") or "it changed while it was read"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _name_problem(place: str, manifest: Manifest) -> str | None:
    if place.startswith("iteration_") and place != f"iteration_{manifest.iteration:08d}":
        return f"it is that of iteration {manifest.iteration}"
    return None


def _verify_foreign(directory: str, place: str, storage: Storage) -> Iterator[FileVerdict]:
    """No checksums there: texts must parse, files must be as long as their heads say, what is named must be there."""
    names = storage.names(directory)
    held: dict[str, set[str]] = {}
    for name in (each for each in names if each.endswith((".safetensors", ".safetensor"))):
        problem = None
        try:
            held[name] = {entry.name for entry in read_header(os.path.join(directory, name), storage=storage)}
        except (OSError, ValueError) as error:
            problem = str(error)
        yield FileVerdict(place=place, name=name, problem=problem)
    for name in (each for each in (COMMON, METADATA, INDEX) if each in names):
        problem = None
        try:
            missing = [pair for pair in _promised(directory, name, storage) if pair[1] not in held.get(pair[0], set())]
            problem = f"says that {missing[0][0]} holds {missing[0][1]}, but it does not" if missing else None
        except (OSError, ValueError) as error:
            problem = str(error)
        yield FileVerdict(place=place, name=name, problem=problem)


def _promised(directory: str, name: str, storage: Storage) -> list[tuple[str, str]]:
    """(file, tensor) pairs that a text names."""
    limit_bytes = MAX_SMALL_BYTES if name == COMMON else MAX_JSON_BYTES
    data = read_small(os.path.join(directory, name), storage=storage, limit_bytes=limit_bytes)
    if name == METADATA:
        return [(piece.file_name, piece.name) for piece in parse_metadata(data)]
    if name == INDEX:
        return [(file_name, tensor) for tensor, file_name in parse_index(data).items()]
    CommonInfo.from_bytes(data)
    return []


def _row(root: str, found: Found, best: bool, storage: Storage) -> Row:
    directory = os.path.join(root, found.place)
    sizes = (storage.size_bytes(os.path.join(directory, name)) or 0 for name in _names(directory, storage))
    state = "foreign" if found.lineage is None else "whole"
    if best:
        state = "next"
    elif found.problem is not None:
        state = "damaged"
    elif found.aside:
        state = "aside"
    elif found.unhealthy:
        state = "unhealthy"
    return Row(
        place=found.place,
        iteration=found.iteration,
        state=state,
        consumed_samples=found.consumed_samples,
        generation=found.generation,
        lineage=found.lineage,
        total_bytes=sum(sizes),
        problem=found.problem,
    )


def _foreign(directory: str, storage: Storage) -> dict[str, Any]:
    if COMMON not in storage.names(directory):
        return {}
    data = read_small(os.path.join(directory, COMMON), storage=storage, limit_bytes=MAX_SMALL_BYTES)
    return dict(vars(CommonInfo.from_bytes(data)))


def _manifest(directory: str, storage: Storage) -> Manifest | None:
    path = os.path.join(directory, MANIFEST)
    if storage.size_bytes(path) is None:
        return None
    return Manifest.from_bytes(read_small(path, storage=storage, limit_bytes=MAX_JSON_BYTES))


def _is_iteration(path: str, storage: Storage) -> bool:
    names = _names(path, storage)
    shards = any(parse_shard_name(name) is not None for name in names)
    return shards or MANIFEST in names or COMMON in names or is_huggingface(names)


def _names(directory: str, storage: Storage) -> list[str]:
    try:
        return storage.names(directory)
    except OSError:
        return []


def _age(found: Found) -> tuple[int, bool, str]:
    return found.iteration, not found.aside, found.place
