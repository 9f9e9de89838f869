"""A torch file of another system -> plain values and tensors, read in a process of its own: none of it runs here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from elastic.checkpoint.layout import MAX_JSON_BYTES, load_json
from elastic.checkpoint.shards import decode_shard
from elastic.checkpoint.values import check_references, decode
from elastic.errors import CheckpointDamaged, NothingToRestore

_LAUNCH = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from elastic.checkpoint.torch_file import main; sys.exit(main(sys.argv[2:]))"
)


def read_torch_file(path: str, *, limit_s: float = 600.0) -> dict[str, Any]:
    """What `torch.save` of a dict left: plain values and tensors, weights only.

    Raises:
        NothingToRestore: there is no such file.
        CheckpointDamaged: it holds something else than plain values and tensors, or is torn.
    """
    if not os.path.isfile(path):
        raise NothingToRestore(f"{path} is not there or not a file")
    with tempfile.TemporaryDirectory(prefix="elastic-import-") as folder:
        paths = json.dumps([os.path.abspath(each) for each in sys.path])
        command = [sys.executable, "-c", _LAUNCH, paths, os.path.abspath(path), folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise CheckpointDamaged(f"{path} could not be read within {limit_s:.0f} s") from error
        if done.returncode != 0:
            told = done.stderr.strip().splitlines()[-1:] or [f"the reading process ended with {done.returncode}"]
            raise CheckpointDamaged(f"{path} cannot be read as plain values and tensors: {told[0]:.400}")
        with open(os.path.join(folder, "tree.json"), "rb") as file:
            tree = load_json(b'{"tree":' + file.read(MAX_JSON_BYTES) + b"}", what=path)["tree"]
        with open(os.path.join(folder, "tensors.safetensors"), "rb") as file:
            tensors = decode_shard(file.read(), file_name=path)
    check_references(tree)
    plain = decode(tree, tensors=tensors)
    if not isinstance(plain, dict):
        raise CheckpointDamaged(f"{path} holds a {type(plain).__name__}, expected a dict")
    return plain
