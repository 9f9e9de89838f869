"""From file, environment and command line to the settings of a run, each with its origin; every problem at once."""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.config.arguments import CONFIG_FLAG, read_arguments, read_environment
from elastic.config.checks import conflict_problems
from elastic.config.model import Settings
from elastic.config.schema import ENV_CONFIG, FIELDS, OPTIONS, SECTIONS, Assignment, SettingProblem, lookup
from elastic.config.values import Wrong, check
from elastic.config.yaml_file import FileSource, read_file
from elastic.errors import ConfigError, Problem

DEFAULT = "default"
_IN_CODE = ("training", "data", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The settings of a run and where each came from.

    `origins` has every `section.field`, and `job.options.NAME` for each option that was given: `default`,
    `FILE:LINE`, `env NAME` or the flag as it was written. `rest` are arguments that are not settings, in their order.
    """

    settings: Settings
    origins: Mapping[str, str]
    rest: tuple[str, ...] = ()


def resolve(argv: Sequence[str], *, environ: Mapping[str, str], strict: bool = True) -> Resolved:
    """Settle every setting: defaults, then the file, then the environment, then the command line; the last one wins.

    Args:
        argv: arguments without the program's name.
        environ: names the file too (ELASTIC_CONFIG) where `--config` does not.
        strict: whether unknown arguments are problems. Otherwise the arguments are some other script's: only full
            names (`--section.field`) are read, and all else, short names and `--config` too, goes into `rest`.

    Raises:
        ConfigError: with every problem of all sources.
    """
    arguments = read_arguments(argv, strict=strict)
    environment = read_environment(environ)
    path = arguments.config if arguments.config is not None else environ.get(ENV_CONFIG)
    file = read_file(path) if path else FileSource()
    problems: list[Problem] = [*file.problems, *environment.problems, *arguments.problems]
    if arguments.config == "":
        problems.append(Problem(CONFIG_FLAG, "needs the path of a YAML file"))
    settings, origins = _settle([*file.assignments, *environment.assignments, *arguments.assignments])
    wrong = frozenset(problem.key for problem in problems if isinstance(problem, SettingProblem))
    problems.extend(conflict_problems(settings, origins, wrong))
    if problems:
        raise ConfigError(tuple(problems))
    return Resolved(settings=settings, origins=origins, rest=arguments.rest)


def with_overrides(settings: Settings, overrides: Mapping[str, Any]) -> Settings:
    """Settings changed by arguments in code, by the bare names of the sections training, data and checkpoint.

    Raises:
        ConfigError: names that are no setting of these sections, and values that do not fit, all at once.
    """
    problems: list[Problem] = []
    changed: dict[str, dict[str, Any]] = {section: {} for section in _IN_CODE}
    for name, value in overrides.items():
        section = next((each for each in _IN_CODE if lookup(f"{each}.{name}") is not None), None)
        spec = lookup(f"{section}.{name}")
        checked = Wrong(what=_unknown_in_code(name)) if spec is None else check(value, spec)
        if isinstance(checked, Wrong):
            problems.append(Problem(f"argument {name}", checked.what))
        elif section is not None:
            changed[section][name] = checked
    parts = {section: dataclasses.replace(getattr(settings, section), **values) for section, values in changed.items()}
    merged = dataclasses.replace(settings, **parts)
    problems.extend(conflict_problems(merged, dict.fromkeys(FIELDS, "arguments"), frozenset()))
    if problems:
        raise ConfigError(tuple(problems))
    return merged


def to_plain(settings: Settings) -> dict[str, dict[str, Any]]:
    """The settings as JSON-ready mappings, section by section; saved with each checkpoint."""
    return {
        section: {item.name: _plain(getattr(part, item.name)) for item in dataclasses.fields(part)}
        for section in SECTIONS
        for part in (getattr(settings, section),)
    }


def from_plain(plain: Mapping[str, Any]) -> Settings:
    """Settings from what `to_plain` made. What is missing keeps its default.

    Raises:
        ConfigError: a name or value that this version does not know. Combinations are not judged.
    """
    assignments: list[Assignment] = []
    problems: list[Problem] = []
    for key, value in _flat(plain):
        spec = lookup(key)
        checked = Wrong(what="is not a setting of this version") if spec is None else check(value, spec)
        if isinstance(checked, Wrong):
            problems.append(Problem("saved settings", f"{key} {checked.what}"))
        else:
            assignments.append(Assignment(key=key, value=checked, origin="saved settings"))
    if problems:
        raise ConfigError(tuple(problems))
    return _settle(assignments)[0]


def _unknown_in_code(name: str) -> str:
    known = [item.name for section in _IN_CODE for item in dataclasses.fields(SECTIONS[section])]
    near = difflib.get_close_matches(name, known, n=1)
    return "is not a setting of training, data or checkpoint" + (f". Did you mean {near[0]!r}?" if near else "")


def _settle(assignments: Iterable[Assignment]) -> tuple[Settings, dict[str, str]]:
    """Put the assignments into settings; later ones win."""
    origins = dict.fromkeys(FIELDS, DEFAULT)
    fields: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    options: dict[str, Any] = {}
    for assignment in assignments:
        origins[assignment.key] = assignment.origin
        if assignment.key.startswith(OPTIONS + "."):
            options[assignment.key.removeprefix(OPTIONS + ".")] = assignment.value
        else:
            section, _, name = assignment.key.partition(".")
            fields[section][name] = assignment.value
    if options:
        fields["job"]["options"] = options
    sections = {section: cls(**fields[section]) for section, cls in SECTIONS.items()}
    return Settings(**sections), origins


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return dict(value) if isinstance(value, Mapping) else value


def _flat(plain: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for section, fields in plain.items():
        if not isinstance(fields, Mapping):
            yield section, fields
            continue
        for name, value in fields.items():
            key = f"{section}.{name}"
            if key == OPTIONS and isinstance(value, Mapping):
                yield from ((f"{key}.{option}", one) for option, one in value.items())
            else:
                yield key, value
