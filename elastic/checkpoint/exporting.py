"""The weights of an iteration -> a directory that Hugging Face tools read. Without torch: the bytes are copied."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic.checkpoint.header import DTYPE_BITS, METADATA_KEY, TensorEntry, read_header
from elastic.checkpoint.huggingface import INDEX, build_index, file_names, split
from elastic.checkpoint.layout import MANIFEST, MAX_JSON_BYTES, METADATA, ShardKind, parse_shard_name
from elastic.checkpoint.locating import is_url
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.stream import Stored, read_pieces, read_whole, stored
from elastic.checkpoint.survey import read_small
from elastic.errors import CheckpointDamaged, CheckpointError, UsageError


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written. `left_out`: further names of tied weights, which the form holds once."""

    directory: str
    files: tuple[str, ...]
    tensors: int
    total_bytes: int
    left_out: tuple[str, ...]


def export_weights(
    iteration: str, directory: str, *, most_bytes: int, storage: Storage, nonce: Callable[[], str]
) -> Exported:
    """Write the model's tensors in files of at most `most_bytes` each, with an index where there are several.

    Raises:
        UsageError: the directory is there already, we did not write the iteration, or the form cannot hold a tensor.
        CheckpointDamaged: a file is not what its manifest says.
        CheckpointError: it could not be written.
    """
    if is_url(directory):
        raise UsageError(f"{directory} is a URL: export into a local directory, and copy that")
    if os.path.lexists(directory):
        raise UsageError(f"{directory} is there already: name a new directory to export into")
    manifest = _manifest(iteration, storage)
    sources = _sources(iteration, manifest, storage)
    temp = f"{directory.rstrip('/')}.tmp-{nonce()}"
    groups = split({name: each.size_bytes for name, each in sources.items()}, most_bytes=most_bytes)
    names = file_names(len(groups))
    total_bytes = sum(each.size_bytes for each in sources.values())
    try:
        storage.make_dir(temp)
        for name, group in zip(names, groups, strict=True):
            _write_file(os.path.join(temp, name), [sources[each] for each in group], storage)
        if len(groups) > 1:
            places = {each: name for name, group in zip(names, groups, strict=True) for each in group}
            storage.write(os.path.join(temp, INDEX), build_index(places, total_bytes=total_bytes))
        storage.sync_dir(temp)
        storage.publish(temp, directory)
        storage.sync_dir(os.path.dirname(os.path.abspath(directory)))
    except OSError as error:
        storage.remove_tree(temp)
        raise CheckpointError(f"{directory} could not be written: {error}") from error
    ties = manifest.values.get("ties", {})
    return Exported(
        directory=directory,
        files=tuple(names),
        tensors=len(sources),
        total_bytes=total_bytes,
        left_out=tuple(f"{name} = {ties[name]}" for name in sorted(ties)),
    )


def _manifest(iteration: str, storage: Storage) -> Manifest:
    path = os.path.join(iteration, MANIFEST)
    if storage.size_bytes(path) is None:
        raise UsageError(f"{iteration} has no {MANIFEST}: only iterations that we wrote can be exported")
    try:
        return Manifest.from_bytes(read_small(path, storage=storage, limit_bytes=MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(str(error)) from error


def _sources(iteration: str, manifest: Manifest, storage: Storage) -> dict[str, Stored]:
    """Every tensor of the model files, by name, each file verified."""
    notes = manifest.values.get("tensors", {})
    entries: list[tuple[str, TensorEntry]] = []
    for name in (METADATA, *(each for each in manifest.files if _holds_weights(each))):
        path = os.path.join(iteration, name)
        try:
            if storage.facts(path) != manifest.files[name]:
                raise CheckpointDamaged(f"{name} is not what was written: its checksum does not match")
            entries += [(name, entry) for entry in read_header(path, storage=storage)] if name != METADATA else []
        except (OSError, ValueError) as error:
            raise CheckpointDamaged(f"{name}: {error}") from error
    try:
        sources = stored(iteration, entries, read_pieces(iteration, storage=storage))
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(f"{iteration}: {error}") from error
    odd = [name for name in sources if notes.get(name, {}).get("dtype") == "complex128"]
    if odd:
        raise UsageError(f"safetensors cannot hold complex128, which {', '.join(sorted(odd)[:4])} is")
    return dict(sorted(sources.items()))


def _holds_weights(name: str) -> bool:
    shard = parse_shard_name(name)
    return shard is not None and shard.kind is ShardKind.MODEL


def _write_file(path: str, sources: Sequence[Stored], storage: Storage) -> None:
    # Wide elements first, as the format's library does, so that every tensor lies on a multiple of its element's size.
    ordered = sorted(sources, key=lambda each: (-DTYPE_BITS[each.dtype], each.name))
    header: dict[str, object] = {METADATA_KEY: {"format": "pt"}}
    at = 0
    for each in ordered:
        end = at + each.size_bytes
        header[each.name] = {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for each in ordered:
            for chunk in read_whole(each, storage=storage):
                file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
