"""Reads a YAML file of settings: every assignment with its line, every problem with its line.

Only the node tree is used, not YAML's own idea of values: YAML 1.1 keeps the last of duplicate keys in silence, reads
`1e-3` as text, `no` as false and `12:30:45` as 45045.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from elastic.config.schema import FIELDS, OPTIONS, SECTIONS, Assignment, SettingProblem, lookup, suggestion
from elastic.config.values import Wrong, parse
from elastic.errors import Problem

_SIZE_LIMIT_BYTES = 1 << 20
"""A file of settings is a page long: more than this is some other file, given by mistake."""


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """What a file says, and what is wrong with it."""

    assignments: tuple[Assignment, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_file(path: str) -> FileSource:
    """Read the file. Never raises: whatever is wrong is among the problems."""
    text = _read_text(path)
    if isinstance(text, Problem):
        return FileSource(problems=(text,))
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else path
        what = " ".join(part for part in (error.context, error.problem) if part)
        return FileSource(problems=(Problem(place, f"not valid YAML: {what}"),))
    except (yaml.YAMLError, RecursionError) as error:
        return FileSource(problems=(Problem(path, f"not valid YAML: {str(error).splitlines()[0]}"),))
    if root is None:  # An empty file, or comments only: every default holds.
        return FileSource()
    found = list(_walk_root(root, path))
    return FileSource(
        assignments=tuple(item for item in found if isinstance(item, Assignment)),
        problems=tuple(item for item in found if isinstance(item, Problem)),
    )


def _read_text(path: str) -> str | Problem:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_SIZE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Problem(path, f"cannot be read: {reason}; give the path of a YAML file")
    if len(raw) > _SIZE_LIMIT_BYTES:
        return Problem(path, f"longer than {_SIZE_LIMIT_BYTES} bytes, which is no file of settings")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        return Problem(f"{path}:{line}", "not UTF-8 text; save the file as UTF-8")


def _walk_root(root: yaml.Node, path: str) -> Iterator[Assignment | Problem]:
    if not isinstance(root, yaml.MappingNode):
        yield Problem(_place(root, path), f"needs sections ({', '.join(SECTIONS)}), found {_kind(root)}")
        return
    for name, key_node, node in _entries(root, path):
        if isinstance(name, Problem):
            yield name
        elif name not in SECTIONS:
            yield Problem(_place(key_node, path), f"unknown section {name!r}.{_section_hint(name)}")
        else:
            yield from _walk_section(name, node, path)


def _walk_section(section: str, node: yaml.Node, path: str) -> Iterator[Assignment | Problem]:
    if _is_null(node):  # `data:` with all its lines commented out
        return
    if not isinstance(node, yaml.MappingNode):
        yield Problem(_place(node, path), f"section {section!r} needs a mapping of settings, found {_kind(node)}")
        return
    known = [key.split(".", 1)[1] for key in FIELDS if key.startswith(section + ".")]
    for name, key_node, value in _entries(node, path):
        if isinstance(name, Problem):
            yield name
        elif f"{section}.{name}" == OPTIONS:
            yield from _walk_options(value, path)
        elif name not in known:
            hint = _home(name) or suggestion(name, known)
            yield Problem(_place(key_node, path), f"unknown setting '{section}.{name}'.{hint}")
        else:
            yield _setting(f"{section}.{name}", value, path)


def _walk_options(node: yaml.Node, path: str) -> Iterator[Assignment | Problem]:
    if _is_null(node):
        return
    if not isinstance(node, yaml.MappingNode):
        yield Problem(_place(node, path), f"{OPTIONS} needs a mapping of names to values, found {_kind(node)}")
        return
    for name, key_node, value in _entries(node, path):
        if isinstance(name, Problem):
            yield name
        elif lookup(f"{OPTIONS}.{name}") is None:
            yield Problem(_place(key_node, path), f"{OPTIONS} cannot hold {name!r}: a name has letters, digits and _")
        else:
            yield _setting(f"{OPTIONS}.{name}", value, path)


def _setting(key: str, node: yaml.Node, path: str) -> Assignment | Problem:
    spec = lookup(key)
    assert spec is not None
    if not isinstance(node, yaml.ScalarNode):
        return SettingProblem(_place(node, path), f"{key} needs a single value, found {_kind(node)}", key)
    value = parse(node.value, spec, quoted=node.style is not None)
    if isinstance(value, Wrong):
        return SettingProblem(_place(node, path), f"{key} {value.what}", key)
    return Assignment(key=key, value=value, origin=_place(node, path))


def _entries(node: yaml.MappingNode, path: str) -> Iterator[tuple[str | Problem, yaml.Node, yaml.Node]]:
    """The entries of a mapping; a Problem in place of the name where it is given twice or is no name."""
    first: dict[str, str] = {}
    for key_node, value in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            yield Problem(_place(key_node, path), f"a name is needed here, found {_kind(key_node)}"), key_node, value
        elif key_node.value in first:
            what = f"{key_node.value!r} is given twice, first at {first[key_node.value]}; remove one"
            yield Problem(_place(key_node, path), what), key_node, value
        else:
            first[key_node.value] = _place(key_node, path)
            yield key_node.value, key_node, value


def _section_hint(name: str) -> str:
    """Where an unknown section is near a known one, or is a setting that lost its section."""
    return _home(name) or suggestion(name, SECTIONS) or f" Sections are {', '.join(SECTIONS)}."


def _home(name: str) -> str:
    """The section that does have a setting of this name."""
    homes = [key for key in FIELDS if key.split(".", 1)[1] == name.replace("-", "_")]
    return f" Did you mean {homes[0]!r}?" if homes else ""


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in ("", "~", "null")


def _place(node: yaml.Node, path: str) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return f"the value {node.value!r}"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"
