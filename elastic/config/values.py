"""From the text of a file, flag or variable to the value of a setting, or a sentence that says what is wrong."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass

from elastic.config.schema import FieldSpec, Value, suggestion

# No leading zeros: 010 is eight to YAML and ten to people. At most 30 digits, since Python refuses thousands.
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{,30}(_[0-9]{1,30}){,9})")
_LARGEST = 2**63 - 1
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
_BOOLEAN_WORDS = frozenset({"yes", "no", "on", "off", "y", "n"})
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_NOT_FINITE = re.compile(r"[-+]?\.?(inf|infinity|nan)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """Why a text is not a value of the setting: found, expected, remedy."""

    what: str


def parse(text: str, spec: FieldSpec, *, quoted: bool) -> Value | Wrong:
    """Read a YAML scalar. `quoted` says that it stood in quotes or in a block, and so is text for certain."""
    if spec.kind is str:
        found = None if quoted else _meaning_besides_text(text)
        if found is not None:
            return Wrong(what=f"needs text, found {found}; put it in quotes if it is meant as text")
        return _checked(text, spec)
    if spec.kind is object:
        return text if quoted else _scalar(text)
    if quoted and spec.kind in (int, float, bool):
        return Wrong(what=f"needs {_noun(spec.kind)}, found the text {text!r}; remove the quotes")
    return parse_plain(text, spec)


def parse_plain(text: str, spec: FieldSpec) -> Value | Wrong:
    """Read the text of a flag or a variable, where quotes do not exist: text settings take it as it is."""
    if spec.kind is object:
        return _scalar(text)
    if spec.kind is str:
        return _checked(text, spec)
    if text in _NULL:
        return Wrong(what=f"needs {_noun(spec.kind)}, found no value")
    if spec.kind is bool:
        return _boolean(text)
    if spec.kind is int:
        return _checked(int(text), spec) if _INT.fullmatch(text) else _not_whole(text)
    if spec.kind is float:
        return _checked(float(text), spec) if _FLOAT.fullmatch(text) else _not_number(text)
    return _member(text, spec.kind)


def check(value: object, spec: FieldSpec) -> Value | Wrong:
    """Take a value that has a type already (from JSON)."""
    if issubclass(spec.kind, enum.Enum):
        return _member(str(value), spec.kind)
    if spec.kind is object and isinstance(value, str | int | float):
        return value
    if spec.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    # A bool is an int to Python, but `steps: true` is a mistake.
    if not isinstance(value, spec.kind) or (isinstance(value, bool) and spec.kind is not bool):
        return Wrong(what=f"needs {_noun(spec.kind)}, found {value!r}")
    if isinstance(value, str | int | float):
        return _checked(value, spec)
    return Wrong(what=f"needs {_noun(spec.kind)}, found {value!r}")


def _boolean(text: str) -> bool | Wrong:
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text.lower() in _BOOLEAN_WORDS:
        meant = "true" if text.lower() in ("yes", "on", "y") else "false"
        return Wrong(what=f"needs true or false, found {text!r}; write {meant}")
    return Wrong(what=f"needs true or false, found {text!r}")


def _not_whole(text: str) -> Wrong:
    hint = ""
    if _FLOAT.fullmatch(text) and float(text).is_integer():
        hint = f"; write {int(float(text))}"
    return Wrong(what=f"needs a whole number, found {text!r}{hint}")


def _not_number(text: str) -> Wrong:
    if _NOT_FINITE.fullmatch(text):
        return Wrong(what=f"needs a finite number, found {text!r}")
    return Wrong(what=f"needs a number, found {text!r}")


def _member(text: str, kind: type) -> Value | Wrong:
    assert issubclass(kind, enum.Enum)
    for member in kind:
        if member.value == text:
            return member
    names = [str(member.value) for member in kind]
    return Wrong(what=f"needs one of {', '.join(names)}, found {text!r}.{suggestion(text, names)}")


def _scalar(text: str) -> Value | Wrong:
    """The value of a free option: true and false, numbers, else text."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def _meaning_besides_text(text: str) -> str | None:
    """What a plain YAML scalar says, if it does not say a text."""
    if text in _NULL:
        return "no value"
    if _INT.fullmatch(text) or _FLOAT.fullmatch(text):
        return f"the number {text}"
    if text in _TRUE or text in _FALSE or text.lower() in _BOOLEAN_WORDS:
        return f"the boolean {text}"
    return None


def _checked(value: str | float, spec: FieldSpec) -> Value | Wrong:
    """The value, if it is within the limits of its rule."""
    rule = spec.rule
    if isinstance(value, str):
        return Wrong(what="must not be empty") if rule.filled and not value.strip() else value
    if isinstance(value, int) and abs(value) > _LARGEST:
        return Wrong(what=f"needs a whole number of at most 64 bits, found {value}")
    if not math.isfinite(value):
        return Wrong(what=f"needs a finite number, found {value!r}")
    unit = f" {rule.unit}" if rule.unit else ""
    if rule.least is not None and value < rule.least:
        return Wrong(what=f"must be at least {rule.least}{unit}, found {value}")
    if rule.most is not None and value > rule.most:
        return Wrong(what=f"must be at most {rule.most}{unit}, found {value}")
    if rule.above is not None and value <= rule.above:
        return Wrong(what=f"must be above {rule.above}{unit}, found {value}")
    if rule.below is not None and value >= rule.below:
        return Wrong(what=f"must be below {rule.below}{unit}, found {value}")
    return value


def _noun(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, "a plain value")
