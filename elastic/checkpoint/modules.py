"""Modules <-> tensors by name: parameters and persistent buffers, ties recorded once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from elastic.checkpoint.cuts import Cut
from elastic.checkpoint.sharded import own_part, part_of

_WRAPPERS = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before every name."""
_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
"""Wrappers that put `module.` before the names of a part: told by type, since a user's own part may be called so."""


@dataclass(frozen=True, kw_only=True)
class ModuleState:
    """A module's state under clean names."""

    tensors: dict[str, Tensor]
    """Of a tensor that is dealt out over the ranks, this rank's part."""
    cuts: dict[str, Cut]
    ties: dict[str, str]
    """Further name of a tensor -> the name that it is stored under."""
    others: dict[str, Any]
    """Entries of the state dict that are no tensors (get_extra_state)."""
    names: dict[int, str]
    """id of a tensor -> the name that it is stored under."""


@dataclass(kw_only=True)
class Difference:
    """How what is stored and what is to be filled differ; empty if they do not."""

    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)

    def lines(self, *, most: int = 8) -> list[str]:
        """Up to three lines for a person."""
        parts = (
            ("not in the checkpoint", self.missing),
            ("only in the checkpoint", self.extra),
            ("different", self.unlike),
        )
        return [f"{title}: {_some(names, most)}" for title, names in parts if names]


def clean_names(names: Iterable[str]) -> dict[str, str]:
    """Name -> the name without what wrappers put around it, so that a wrapped and a plain module agree."""
    names = list(names)
    clean = {name: name.replace("._orig_mod.", ".") for name in names}
    for _ in range(len(_WRAPPERS) * 4):  # wrappers may be nested, though not endlessly
        for wrapper in _WRAPPERS:
            if clean and all(name.startswith(wrapper) for name in clean.values()):
                clean = {name: short.removeprefix(wrapper) for name, short in clean.items()}
    return clean


def entry_names(module: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Entries of a module's state dict -> their clean names, also where only a part of the module is wrapped."""
    wrapped = [path + ".module." for path, each in module.named_modules() if path and isinstance(each, _PARALLEL)]
    short = {name: name for name in names}
    # Outer ones last: taking a part out of a name leaves what stands before it as it was.
    for head in sorted(wrapped, key=len, reverse=True):
        inner = head.removesuffix("module.")
        short = {
            name: inner + each.removeprefix(head) if each.startswith(head) else each for name, each in short.items()
        }
    clean = clean_names(short.values())
    return {name: clean[each] for name, each in short.items()}


def live_state(module: nn.Module, *, prefix: str = "") -> dict[str, Any]:
    """The module's own tensors (not copies) and other entries, by clean name."""
    state = module.state_dict(keep_vars=True)
    clean = entry_names(module, state)
    return {prefix + clean[name]: value for name, value in state.items()}


def buffer_names(module: nn.Module, *, prefix: str = "") -> set[str]:
    """The names under which its buffers are stored."""
    clean = clean_names(module.state_dict())
    return {prefix + clean[name] for name, _ in module.named_buffers() if name in clean}


def capture_module(module: nn.Module, *, prefix: str = "") -> ModuleState:
    """Take a module's state: references to its tensors, not copies."""
    tensors: dict[str, Tensor] = {}
    cuts: dict[str, Cut] = {}
    ties: dict[str, str] = {}
    others: dict[str, Any] = {}
    first: dict[int, str] = {}
    for name, value in live_state(module, prefix=prefix).items():
        if not isinstance(value, Tensor):
            others[name] = value
        elif (known := first.setdefault(id(value), name)) != name:
            ties[name] = known
        else:
            tensors[name], cut = part_of(value, name=name)
            if cut is not None:
                cuts[name] = cut
    return ModuleState(tensors=tensors, cuts=cuts, ties=ties, others=others, names=first)


def match_module(
    module: nn.Module, saved: Mapping[str, Tensor], ties: Mapping[str, str], *, prefix: str, exact: bool,
    cuts: Mapping[str, Cut],
) -> tuple[list[tuple[Tensor, Tensor]], Difference]:  # fmt: skip
    """Pair each of the module's tensors with a saved one, as (target, source), and tell what does not fit.

    `exact` also wants the same dtype and the same ties; else a floating dtype may differ and ties may be undone.
    `cuts`: of which saved tensors only this rank's part is given.
    """
    difference = Difference()
    pairs: list[tuple[Tensor, Tensor]] = []
    groups: dict[int, list[str]] = {}
    live = {name: value for name, value in live_state(module, prefix=prefix).items() if isinstance(value, Tensor)}
    for name, value in live.items():
        groups.setdefault(id(value), []).append(name)
    sources_used: dict[str, str] = {}
    for names in groups.values():
        sources = list(dict.fromkeys(ties.get(name, name) for name in names if ties.get(name, name) in saved))
        if not sources:
            difference.missing.extend(names)
            continue
        target, cut = part_of(live[names[0]], name=names[0])
        source = own_part(saved[sources[0]], cut, known=cuts.get(sources[0]))
        if any(not _equal(saved[sources[0]], saved[other]) for other in sources[1:]):
            difference.unlike.append(f"{' = '.join(names)} (one tensor here, several in the checkpoint)")
        elif exact and (taken := sources_used.setdefault(sources[0], names[0])) != names[0]:
            difference.unlike.append(f"{taken} = {names[0]} (one tensor in the checkpoint, two here)")
        elif (fault := _fault(target, source, exact, cut)) is not None:
            difference.unlike.append(f"{names[0]} ({fault})")
        else:
            pairs.append((target, source))
    known = {ties.get(name, name) for name in live}
    difference.extra.extend(name for name in saved if name not in known)
    return pairs, difference


@torch.no_grad()
def copy_into(target: Tensor, source: Tensor) -> None:
    """Write values into a tensor that others hold; also into one whose elements share memory (expand)."""
    for axis, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[axis] > 1:
            target, source = target.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
    target.copy_(source)


def _fault(target: Tensor, source: Tensor, exact: bool, cut: Cut | None) -> str | None:
    if target.shape != source.shape:
        return f"{list(source.shape)} in the checkpoint, {list(cut.shape if cut else target.shape)} here"
    castable = target.is_floating_point() and source.is_floating_point() and not exact
    if target.dtype != source.dtype and not castable:
        return f"{source.dtype} in the checkpoint, {target.dtype} here"
    return None


def _equal(one: Tensor, other: Tensor) -> bool:
    # Without numbers nothing more can be said yet.
    return one.dtype == other.dtype and (one.is_meta or other.is_meta or torch.equal(one, other))


def _some(names: list[str], most: int) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
