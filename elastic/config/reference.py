"""The table of settings for the documentation, made from the settings themselves."""

from __future__ import annotations

import enum
import json

from elastic.config.schema import ALIASES, FIELDS, FieldSpec


def settings_table() -> str:
    """A Markdown table with one row for each setting."""
    rows = ["| Setting | Default | Meaning |", "| --- | --- | --- |"]
    rows.extend(_row(spec) for spec in FIELDS.values())
    return "\n".join(rows) + "\n"


def _row(spec: FieldSpec) -> str:
    short = [f"`{alias}`" for alias, key in ALIASES.items() if key == spec.key]
    name = ", ".join([f"`{spec.key}`", *short])
    return f"| {name} | `{_default(spec)}` | {spec.rule.meaning}{_limits(spec)} |"


def _default(spec: FieldSpec) -> str:
    return str(spec.default.value) if isinstance(spec.default, enum.Enum) else json.dumps(spec.default)


def _limits(spec: FieldSpec) -> str:
    rule = spec.rule
    parts = [f"{word} {limit:g}" for word, limit in (("at least", rule.least), ("above", rule.above)) if limit]
    parts += [f"{word} {limit:g}" for word, limit in (("at most", rule.most), ("below", rule.below)) if limit]
    if issubclass(spec.kind, enum.Enum):
        parts.append("one of " + ", ".join(str(member.value) for member in spec.kind))
    unit = f" [{rule.unit}]" if rule.unit else ""
    return f"{unit} ({'; '.join(parts)})" if parts else unit
