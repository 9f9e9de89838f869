"""Reads settings from command-line arguments and environment variables: assignments, problems and what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elastic.config.schema import (
    ALIASES,
    ENV_PREFIX,
    FIELDS,
    SECTIONS,
    Assignment,
    FieldSpec,
    SettingProblem,
    lookup,
    suggestion,
)
from elastic.config.values import Wrong, parse_plain
from elastic.errors import Problem

CONFIG_FLAG = "--config"


@dataclass(frozen=True, kw_only=True)
class ArgumentSource:
    """What the command line says. `config` is the file it names; `rest` are arguments that are not ours."""

    config: str | None = None
    assignments: tuple[Assignment, ...] = ()
    problems: tuple[Problem, ...] = ()
    rest: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EnvironmentSource:
    """What the environment says."""

    assignments: tuple[Assignment, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_environment(environ: Mapping[str, str]) -> EnvironmentSource:
    """Read every variable that begins with ELASTIC__ (two underscores)."""
    assignments: list[Assignment] = []
    problems: list[Problem] = []
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX):
            continue
        key = ".".join(name.removeprefix(ENV_PREFIX).lower().split("__", 2))
        spec = lookup(key)
        if spec is None:
            known = [one.env for one in FIELDS.values()]
            problems.append(Problem(f"env {name}", f"unknown setting {key!r}.{suggestion(name, known)}"))
            continue
        _assign(key, environ[name], spec, f"env {name}", assignments, problems)
    return EnvironmentSource(assignments=tuple(assignments), problems=tuple(problems))


def read_arguments(argv: Sequence[str], *, strict: bool) -> ArgumentSource:
    """Read `--section.field value`, `--section.field=value`, `section.field=value`, short names and `--config`.

    Not strict: the arguments are some other script's, who may have a `--data` or `--config` of its own. Then only
    full names of settings are ours, and all else goes into `rest`.
    """
    reader = _Reader(argv=list(argv), strict=strict)
    while reader.argv:
        reader.step()
    return ArgumentSource(
        config=reader.config,
        assignments=tuple(reader.assignments),
        problems=tuple(reader.problems),
        rest=tuple(reader.rest),
    )


@dataclass(kw_only=True)
class _Reader:
    argv: list[str]
    strict: bool
    config: str | None = None
    assignments: list[Assignment] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)

    def step(self) -> None:
        """Take one argument, with its value, from the front."""
        token = self.argv.pop(0)
        name, equals, value = token.partition("=")
        if self.strict and name == CONFIG_FLAG:
            self.config = self._value(name, value if equals else None)
            return
        key = _key_of(name, bare=bool(equals), short=self.strict)
        spec = lookup(key) if key else None
        if key and spec:
            text = self._value(name, value if equals else None)
            if text is not None:
                _assign(key, text, spec, name if name.startswith("--") else f"{name}=", self.assignments, self.problems)
        elif self.strict:
            self._unknown(name, key, bool(equals))
        else:
            self.rest.append(token)

    def _value(self, name: str, given: str | None) -> str | None:
        if given is not None:
            return given
        if self.argv and not self.argv[0].startswith("--"):
            return self.argv.pop(0)
        self.problems.append(Problem(name, f"needs a value: {name} VALUE or {name}=VALUE"))
        return None

    def _unknown(self, name: str, key: str | None, has_value: bool) -> None:
        if name.startswith("-"):
            # Its value, if it has one, is not a second mistake.
            if not has_value and self.argv and not self.argv[0].startswith("-") and "=" not in self.argv[0]:
                self.argv.pop(0)
            known = [f"--{one}" for one in FIELDS] + list(ALIASES) + [CONFIG_FLAG]
            self.problems.append(Problem(name, f"unknown argument.{suggestion(name, known)}"))
        elif key:
            self.problems.append(Problem(f"{name}=", f"unknown setting {key!r}.{suggestion(key, FIELDS)}"))
        else:
            self.problems.append(Problem(name, "unexpected argument; settings are given as --section.field VALUE"))


def _key_of(name: str, *, bare: bool, short: bool) -> str | None:
    """The dotted key that an argument names, if it has the form of one."""
    if short and name in ALIASES:
        return ALIASES[name]
    if name.startswith("--"):
        name = name[2:]
    elif not bare:
        return None
    key = name.replace("-", "_")
    return key if key.split(".", 1)[0] in SECTIONS and "." in key else None


def _assign(
    key: str,
    text: str,
    spec: FieldSpec,
    origin: str,
    assignments: list[Assignment],
    problems: list[Problem],
) -> None:
    value = parse_plain(text, spec)
    if isinstance(value, Wrong):
        problems.append(SettingProblem(origin, f"{key} {value.what}", key))
    else:
        assignments.append(Assignment(key=key, value=value, origin=origin))
