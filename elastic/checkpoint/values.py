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

_SCALARS = "biufcUS"
"""Kinds of numpy scalars that come back: numbers and texts, no objects. (g, G are the long ones: not portable.)"""

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
    if (
        isinstance(value, numpy.generic)
        and value.dtype.kind in _SCALARS
        and not isinstance(value.item(), numpy.generic)
    ):
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


def check_references(plain: Any) -> None:
    """Refuse a state that uses one tensor in several places: a small file could ask for any amount of memory.

    Raises:
        CheckpointDamaged: `encode` never makes such a state.
    """
    seen: set[str] = set()
    left = [plain]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left.extend(each)
        elif isinstance(each, dict):
            if each.get(_TAG) in ("tensor", "ndarray"):
                name = str(each.get("name"))
                if name in seen:
                    raise CheckpointDamaged(f"the state uses the tensor {name!r:.80} in several places")
                seen.add(name)
            left.extend(each.values())


def decode(plain: Any, *, tensors: Mapping[str, Tensor], copy: bool = True) -> Any:
    """Turn what `encode` made back into the value; tensors are the named ones, or copies of them."""
    if isinstance(plain, list):
        return [decode(item, tensors=tensors, copy=copy) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if _TAG not in plain:
        return {key: decode(item, tensors=tensors, copy=copy) for key, item in plain.items()}
    try:
        return _decode_tagged(plain[_TAG], plain, tensors, copy)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(f"cannot read back the state {plain!r:.120}: {error!r}") from error


def _decode_tagged(kind: str, plain: dict[str, Any], tensors: Mapping[str, Tensor], copy: bool) -> Any:
    match kind:
        case "tensor":
            return tensors[plain["name"]].clone() if copy else tensors[plain["name"]]
        case "ndarray":
            return tensors[plain["name"]].numpy().copy()
        case "float":
            return float(plain["value"])
        case "complex":
            return complex(*(float(part) for part in plain["value"]))
        case "scalar":
            return _scalar(plain["dtype"], decode(plain["value"], tensors=tensors, copy=copy))
        case "dtype":
            return _dtype(plain["value"])
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
    return makers[kind](decode(plain["items"], tensors=tensors, copy=copy))


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch.{name} is not a dtype")
    return found


def _scalar(name: str, value: Any) -> Any:
    dtype = numpy.dtype(name)
    if dtype.kind not in _SCALARS:
        raise ValueError(f"numpy's {name} is not a type of numbers")
    return dtype.type(value)
