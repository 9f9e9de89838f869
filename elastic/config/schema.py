"""The table of settings: `section.field` with its type, default and rule, and the short names of flags."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elastic.config.model import Scalar, Settings
from elastic.config.rules import Rule, rule_of
from elastic.errors import Problem

ALIASES: Mapping[str, str] = {
    "--data": "data.path",
    "--job": "job.target",
    "--steps": "training.steps",
    "--save-path": "checkpoint.save_path",
    "--global-batch": "training.global_batch_size",
}
"""Short names of flags. `--config FILE` is the only flag besides these and `--section.field`."""

ENV_CONFIG = "ELASTIC_CONFIG"
ENV_PREFIX = "ELASTIC__"
OPTIONS = "job.options"
"""The one setting that is a mapping: `job.options.NAME` are the keys."""

Value = Scalar | enum.Enum
"""What one setting can hold. A key below OPTIONS holds a Scalar."""


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One setting. `kind` is int, float, bool, str or an Enum class; dict for OPTIONS alone."""

    key: str
    kind: type
    default: object
    rule: Rule

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return ENV_PREFIX + self.key.upper().replace(".", "__")


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One source gives one setting a value. `key` is `section.field` or `job.options.NAME`."""

    key: str
    value: Value
    origin: str


@dataclass(frozen=True)
class SettingProblem(Problem):
    """A problem with the value of one known setting, which then keeps its default."""

    key: str


def _specs() -> dict[str, FieldSpec]:
    specs: dict[str, FieldSpec] = {}
    for section, cls in SECTIONS.items():
        hints = typing.get_type_hints(cls)
        for item in dataclasses.fields(cls):
            kind = typing.get_origin(hints[item.name]) or hints[item.name]
            default = getattr(cls(), item.name)
            key = f"{section}.{item.name}"
            specs[key] = FieldSpec(
                key=key, kind=dict if key == OPTIONS else kind, default=default, rule=rule_of(item.metadata)
            )
    return specs


SECTIONS: Mapping[str, type] = typing.get_type_hints(Settings)
FIELDS: Mapping[str, FieldSpec] = _specs()
OPTION = FieldSpec(key=f"{OPTIONS}.NAME", kind=object, default=None, rule=Rule(meaning="a value for your own job"))


def lookup(key: str) -> FieldSpec | None:
    """The setting that a dotted key names, or None. Any valid name below `job.options` is a setting."""
    if key.startswith(OPTIONS + "."):
        return OPTION if key[len(OPTIONS) + 1 :].isidentifier() else None
    spec = FIELDS.get(key)
    return spec if spec is not None and spec.kind is not dict else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing where no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
