"""What lies in a root: its tracker and its iterations, judged by manifests and file sizes, without reading tensors."""

from __future__ import annotations

import os
from dataclasses import dataclass

from elastic.checkpoint.huggingface import INDEX, SINGLE, is_huggingface, parse_index
from elastic.checkpoint.layout import (
    COMMON,
    MANIFEST,
    MAX_JSON_BYTES,
    MAX_SMALL_BYTES,
    METADATA,
    TRACKER,
    CommonInfo,
    ShardKind,
    TrackerText,
    parse_aside_name,
    parse_iteration_dir,
    parse_shard_name,
    parse_temp_name,
    parse_tracker,
    parse_trash_name,
)
from elastic.checkpoint.manifest import Manifest, digest
from elastic.checkpoint.metadata import parse_metadata
from elastic.checkpoint.policy import Found
from elastic.checkpoint.storage import Storage

VISIBLE_WITHIN_S = 15.0
"""How late a file may reach another node: network file systems keep what they know of a directory for seconds."""
VISIBLE_POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Survey:
    """A root at a moment."""

    tracker: TrackerText
    found: tuple[Found, ...]

    @property
    def in_place(self) -> tuple[Found, ...]:
        """Iterations under their own name."""
        return tuple(each for each in self.found if not each.aside)


def survey(root: str, *, storage: Storage) -> Survey:
    """Look at every iteration of a root, those set aside too. A root that is not there holds nothing.

    Raises:
        OSError: the root cannot be listed.
    """
    found = []
    for name in storage.names(root):
        if (iteration := parse_iteration_dir(name)) is not None:
            found.append(judge(root, name, iteration=iteration, storage=storage))
        elif (iteration := _out_of_the_way(name)) is not None:
            found.append(judge(root, name, iteration=iteration, storage=storage, aside=True))
    return Survey(tracker=read_tracker(root, storage=storage), found=tuple(found))


def highest_generation(root: str, *, storage: Storage) -> int:
    """The highest generation that ever wrote into a root, as far as it shows; 0 where none did."""
    begun = (parse_temp_name(name) or 0 for name in storage.names(root))
    return max((*begun, *(each.generation for each in survey(root, storage=storage).found)), default=0)


def read_tracker(root: str, *, storage: Storage) -> TrackerText:
    """What the tracker of a root says."""
    try:
        return parse_tracker(read_small(os.path.join(root, TRACKER), storage=storage, limit_bytes=MAX_SMALL_BYTES))
    except (OSError, ValueError) as error:
        return TrackerText(iteration=None, reason=f"no tracker: {error}")


def read_small(path: str, *, storage: Storage, limit_bytes: int) -> bytes:
    """A file whose length is bounded before it is read.

    Raises:
        ValueError: missing or too long.
        OSError: not readable.
    """
    size_bytes = storage.size_bytes(path)
    if size_bytes is None:
        raise ValueError(f"{os.path.basename(path)} is missing")
    if size_bytes > limit_bytes:
        raise ValueError(f"{os.path.basename(path)} has {size_bytes} bytes, more than the {limit_bytes} it may have")
    return storage.read(path)


def _out_of_the_way(name: str) -> int | None:
    """The iteration of a directory that was set aside, or renamed to be deleted; None for any other name."""
    iteration = parse_aside_name(name)
    return parse_trash_name(name) if iteration is None else iteration


def judge(root: str, place: str, *, iteration: int | None, storage: Storage, aside: bool = False) -> Found:
    """What one directory holds; a fault becomes the `problem`. `iteration`: what its name says, if that says any."""
    directory = os.path.join(root, place)
    names = _names(directory, storage)
    if MANIFEST not in names and (_model_shards(names) or is_huggingface(names) or {COMMON, METADATA} & set(names)):
        return _judge_foreign(directory, place, iteration or 0, names, storage, aside)
    try:
        data = read_small(os.path.join(directory, MANIFEST), storage=storage, limit_bytes=MAX_JSON_BYTES)
        manifest = Manifest.from_bytes(data)
    except (OSError, ValueError) as error:
        return Found(place=place, iteration=iteration or 0, problem=str(error), aside=aside)
    problem = _problem(directory, manifest, iteration, storage)
    return Found(
        place=place,
        iteration=manifest.iteration if iteration is None else iteration,
        problem=problem,
        lineage=manifest.lineage,
        generation=manifest.generation,
        consumed_samples=manifest.consumed_samples,
        manifest_digest=digest(data),
        ancestors=manifest.ancestors,
        ckpt_status=manifest.ckpt_status,
        aside=aside,
    )


def _problem(directory: str, manifest: Manifest, iteration: int | None, storage: Storage) -> str | None:
    if iteration is not None and manifest.iteration != iteration:
        return f"its {MANIFEST} is that of iteration {manifest.iteration}"
    for name, facts in manifest.files.items():
        size_bytes = storage.size_bytes(os.path.join(directory, name))
        if size_bytes is None:
            return f"{name} is missing"
        if size_bytes != facts.size_bytes:
            return f"{name} has {size_bytes} bytes, expected {facts.size_bytes}"
    return None


def _judge_foreign(
    directory: str, place: str, iteration: int, names: list[str], storage: Storage, aside: bool
) -> Found:
    """A directory that another system wrote: no checksums there, so only existence can be judged."""
    problem = None if _model_shards(names) or is_huggingface(names) else "it holds no model shard"
    consumed_samples = 0
    ckpt_status = None
    try:
        if INDEX in names and SINGLE not in names:
            data = read_small(os.path.join(directory, INDEX), storage=storage, limit_bytes=MAX_JSON_BYTES)
            if gone := sorted(set(parse_index(data).values()) - set(names)):
                problem = f"{gone[0]} is missing"
        if METADATA in names:
            data = read_small(os.path.join(directory, METADATA), storage=storage, limit_bytes=MAX_JSON_BYTES)
            wanted = {piece.file_name for piece in parse_metadata(data)}
            if gone := sorted(wanted - set(names)):
                problem = f"{gone[0]} is missing"
        if COMMON in names:
            data = read_small(os.path.join(directory, COMMON), storage=storage, limit_bytes=MAX_SMALL_BYTES)
            common = CommonInfo.from_bytes(data)
            consumed_samples = common.consumed_samples or common.global_step * common.global_batch_size
            ckpt_status = common.ckpt_status
    except (OSError, ValueError) as error:
        problem = str(error)
    return Found(
        place=place,
        iteration=iteration,
        problem=problem,
        consumed_samples=consumed_samples,
        ckpt_status=ckpt_status,
        aside=aside,
    )


def _names(directory: str, storage: Storage) -> list[str]:
    try:
        return storage.names(directory)
    except OSError:
        return []  # a file in the place of a directory: the manifest is missing, which is then the problem told


def _model_shards(names: list[str]) -> list[str]:
    shards = ((name, parse_shard_name(name)) for name in names)
    return [name for name, shard in shards if shard is not None and shard.kind is ShardKind.MODEL]
