"""Writing the files of a save: a rank's shards, and the three texts that say what they are."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from elastic.checkpoint.background import at_once, in_thread
from elastic.checkpoint.checksums import CHUNK_BYTES, facts_of
from elastic.checkpoint.image import Image
from elastic.checkpoint.layout import COMMON, MANIFEST, METADATA, CommonInfo, is_spare
from elastic.checkpoint.manifest import FileFacts, Manifest
from elastic.checkpoint.metadata import StoredTensor, TensorFacts, build_metadata
from elastic.checkpoint.storage import LARGE_BYTES, Recycler, Storage


def write_image(temp: str, image: Image, storage: Storage) -> dict[str, Any]:
    """Write a file, forced to disk; gives its name, length, checksums and tensors in JSON types."""
    path = os.path.join(temp, image.name)
    if len(image.data) >= LARGE_BYTES:
        facts = in_thread(lambda: facts_of(image.data))  # while the disk is at work
        if not _rewrite(path, image, storage):
            storage.write(path, image.data)
    else:
        facts = at_once(lambda: facts_of(image.data))
        storage.write(path, image.data)
    tensors = [each.to_plain() for each in image.tensors]
    return {"name": image.name, "facts": dataclasses.asdict(facts.result()), "tensors": tensors}


def texts_of(draft: Manifest, common: CommonInfo, shards: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """common.json, metadata.json and the manifest. `shards`: what `write_image` told, each with its `rank`."""
    texts = {COMMON: common.to_bytes(), METADATA: build_metadata(_stored(shards))}
    files = {shard["name"]: file_facts(shard["facts"]) for shard in shards}
    files |= {name: facts_of(data) for name, data in texts.items()}
    return texts | {MANIFEST: dataclasses.replace(draft, files=files, chunk_bytes=CHUNK_BYTES).to_bytes()}


def file_facts(plain: Mapping[str, Any]) -> FileFacts:
    """Read back what `write_image` told of a file."""
    chunks = tuple((end, crc32) for end, crc32 in plain["chunks"])
    return FileFacts(size_bytes=plain["size_bytes"], crc32=plain["crc32"], chunks=chunks)


def _rewrite(path: str, image: Image, storage: Storage) -> bool:
    """Write it over the file of its name in an iteration that was given up, if there is one."""
    root = os.path.dirname(os.path.dirname(path))
    if not isinstance(storage, Recycler) or not isinstance(image.data, memoryview):
        return False
    spares = [os.path.join(root, name, image.name) for name in storage.names(root) if is_spare(name)]
    return any(storage.rewrite(spare, path, image.data) for spare in spares)


def _stored(shards: Sequence[Mapping[str, Any]]) -> list[StoredTensor]:
    return [
        StoredTensor(facts=TensorFacts.from_plain(plain), file_name=shard["name"], rank=shard["rank"])
        for shard in shards
        for plain in shard["tensors"]
    ]
