"""Plain state of a Python object <-> JSON and named tensors, exactly; what is read back can run no code."""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from elastic.errors import CheckpointDamaged, CheckpointError

_TAG = "$"
"""The key that marks an object as one of ours and not a plain dict."""

Sink = Callable[[str, Tensor], str]
"""Takes (path, tensor), keeps the tensor, gives the name it is kept under."""


def encode(value: Any, *, path: str, sink: Sink) -> Any:
    """Turn a value into JSON; its tensors go to `sink`.

    Raises:
        CheckpointError: a type that cannot be stored; the message names its place.
    """
    if value is None or isinstance(value, bool) or type(value) in (int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
    if isinstance(value, Tensor):
        return {_TAG: "tensor", "name": sink(path, value.detach())}
    if isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        return {_TAG: "ndarray", "name": sink(path, torch.from_numpy(value.copy()))}
    if isinstance(value, numpy.generic):
        return {_TAG: "scalar", "dtype": value.dtype.str, "value": encode(value.item(), path=path, sink=sink)}
    if isinstance(value, torch.dtype):
        return {_TAG: "dtype", "value": str(value).removeprefix("torch.")}
    if type(value) is complex:
        return {_TAG: "complex", "value": [repr(value.real), repr(value.imag)]}
    if type(value) is bytes:
        return {_TAG: "bytes", "value": base64.b64encode(value).decode()}
    return _encode_container(value, path, sink)


def _encode_container(value: Any, path: str, sink: Sink) -> Any:
    if type(value) in (list, tuple):
        items = [encode(item, path=f"{path}.{at}", sink=sink) for at, item in enumerate(value)]
        return items if type(value) is list else {_TAG: "tuple", "items": items}
    if type(value) in (set, frozenset):
        items = [encode(item, path=f"{path}.{at}", sink=sink) for at, item in enumerate(sorted(value, key=repr))]
        return {_TAG: type(value).__name__, "items": items}
    if isinstance(value, Mapping) and (kind := _dict_kind(value)) is not None:
        if kind == "dict" and all(type(key) is str and not key.startswith(_TAG) for key in value):
            return {key: encode(item, path=f"{path}.{key}", sink=sink) for key, item in value.items()}
        pairs = [
            [encode(key, path=f"{path}.key", sink=sink), encode(item, path=f"{path}.{key}", sink=sink)]
            for key, item in value.items()
        ]
        return {_TAG: kind, "items": pairs}
    raise CheckpointError(
        f"the state at {path} is of type {type(value).__module__}.{type(value).__qualname__}, which cannot be stored. "
        "state_dict() may hold tensors, arrays, numbers, strings, bytes, None, and lists, tuples, sets, dicts of these."
    )


def _dict_kind(value: Mapping[Any, Any]) -> str | None:
    kinds: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
    return kinds.get(type(value))


def decode(plain: Any, *, tensors: Mapping[str, Tensor]) -> Any:
    """Turn what `encode` made back into the value; tensors are copies of the named ones."""
    if isinstance(plain, list):
        return [decode(item, tensors=tensors) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if _TAG not in plain:
        return {key: decode(item, tensors=tensors) for key, item in plain.items()}
    try:
        return _decode_tagged(plain[_TAG], plain, tensors)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointDamaged(f"cannot read back the state {plain!r:.120}: {error!r}") from error


def _decode_tagged(kind: str, plain: dict[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    match kind:
        case "tensor":
            return tensors[plain["name"]].clone()
        case "ndarray":
            return tensors[plain["name"]].numpy().copy()
        case "float":
            return float(plain["value"])
        case "complex":
            return complex(*(float(part) for part in plain["value"]))
        case "scalar":
            return numpy.dtype(plain["dtype"]).type(decode(plain["value"], tensors=tensors))
        case "dtype":
            return getattr(torch, plain["value"])
        case "bytes":
            return base64.b64decode(plain["value"])
    makers: dict[str, Callable[[Any], Any]] = {
        "tuple": tuple,
        "set": set,
        "frozenset": frozenset,
        "dict": dict,
        "ordered": OrderedDict,
        "counter": lambda pairs: Counter(dict(pairs)),
    }
    return makers[kind](decode(plain["items"], tensors=tensors))
