"""Wording: lists in reasons, short however many nodes they speak of. Reasons go to every agent. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 8


def listed(items: Iterable[str], *, by: str = ", ") -> str:
    """All of them, or the first few and how many more there are."""
    words = list(items)
    more = len(words) - _MOST
    # One more is said by its name as well as by its number.
    return by.join(words) if more <= 1 else f"{by.join(words[:_MOST])} and {more} more"
