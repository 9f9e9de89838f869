"""Rules: what a setting means and what it may be, as the metadata of the field that declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a setting means and what it may be."""

    meaning: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    """Greater than this; for what may come close to a limit but not reach it."""
    below: float | None = None
    filled: bool = False
    """Text that must not be empty."""


def rule_of(metadata: Mapping[str, Any]) -> Rule:
    """The rule that a dataclass field was declared with."""
    rule = metadata["rule"]
    assert isinstance(rule, Rule)
    return rule


def about(meaning: str, **limits: Any) -> dict[str, Rule]:
    """The metadata of a setting."""
    return {"rule": Rule(meaning=meaning, **limits)}
