"""Shapes: what a JSON value must be to be the value of an event's field, by the annotation that the field has. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from elastic.events.causes import Cause, Direction, Outcome

Shape = Callable[[Any], Any]
"""Gives the value its own type. Raises ValueError, TypeError, OverflowError: it is none of that shape."""

_MOST = 1 << 64
"""Whole numbers are digests, counts and sizes: what is larger cannot even be reckoned with."""


def text(value: Any) -> str:
    """A string."""
    if type(value) is not str:
        raise TypeError
    return value


def whole(value: Any) -> int:
    """A whole number of 64 bits, and no truth value."""
    if type(value) is not int or not -_MOST < value < _MOST:
        raise TypeError
    return value


def real(value: Any) -> float:
    """A finite number."""
    found = measured(value)
    if not math.isfinite(found):
        raise ValueError
    return found


def moment(value: Any) -> float:
    """Unix time, in the past or not too far ahead: the year 5138 ends it."""
    found = real(value)
    if not 0 <= found < 1e11:
        raise ValueError
    return found


def measured(value: Any) -> float:
    """What a model computed: any number, or none at all."""
    if type(value) is float:
        return value
    if type(value) is not int:
        raise TypeError
    return float(value)


def truth(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise TypeError
    return value


def _or_none(shape: Shape) -> Shape:
    return lambda value: None if value is None else shape(value)


def _many(shape: Shape) -> Shape:
    return lambda value: tuple(shape(each) for each in _list(value))


def _row(*shapes: Shape) -> Shape:
    return lambda value: tuple(shape(each) for shape, each in zip(shapes, _list(value), strict=True))


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value


SHAPES: dict[str, Shape] = {
    "str": text,
    "int": whole,
    "float": real,
    "Measured": measured,
    "bool": truth,
    "float | None": _or_none(real),
    "Cause": Cause,
    "Direction": Direction,
    "Outcome": Outcome,
    "tuple[str, ...]": _many(text),
    "tuple[int, ...]": _many(whole),
    "tuple[tuple[int, int], ...]": _many(_row(whole, whole)),
    "tuple[tuple[str, int, int], ...]": _many(_row(text, whole, whole)),
    "tuple[tuple[str, int, float], ...]": _many(_row(text, whole, real)),
    "tuple[tuple[str, float], ...]": _many(_row(text, real)),
    "tuple[tuple[str, Measured], ...]": _many(_row(text, measured)),
}
"""By the words of the annotation."""
