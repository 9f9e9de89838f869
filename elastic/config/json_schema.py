"""The settings as a JSON Schema (2020-12), for editors and CI. `elastic config check` looks closer."""

from __future__ import annotations

import enum
from typing import Any

from elastic.config.schema import FIELDS, OPTIONS, SECTIONS, FieldSpec

_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}
_SCALARS = ["string", "integer", "number", "boolean"]


def json_schema() -> dict[str, Any]:
    """Of one settings file: sections of settings, all of them optional, no others."""
    sections = {
        section: {
            "type": ["object", "null"],
            "additionalProperties": False,
            "properties": {
                spec.key.partition(".")[2]: _field(spec)
                for spec in FIELDS.values()
                if spec.key.startswith(f"{section}.")
            },
        }
        for section in SECTIONS
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of an elastic run",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": sections,
    }


def _field(spec: FieldSpec) -> dict[str, Any]:
    rule = spec.rule
    unit = f" [{rule.unit}]" if rule.unit else ""
    told: dict[str, Any] = {"description": rule.meaning + unit}
    if spec.key == OPTIONS:
        names = {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
        return told | {"type": "object", "propertyNames": names, "additionalProperties": {"type": _SCALARS}}
    if issubclass(spec.kind, enum.Enum):
        assert isinstance(spec.default, enum.Enum)
        return told | {"enum": [member.value for member in spec.kind], "default": spec.default.value}
    limits = {
        "minimum": rule.least,
        "maximum": rule.most,
        "exclusiveMinimum": rule.above,
        "exclusiveMaximum": rule.below,
        "minLength": 1 if rule.filled else None,
    }
    told |= {name: limit for name, limit in limits.items() if limit is not None}
    return told | {"type": _TYPES[spec.kind], "default": spec.default}
