"""Holdings: what each place has of every iteration, and what all of them have together. The decisions are pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastic.checkpoint.layout import (
    MANIFEST,
    MAX_JSON_BYTES,
    TrackerText,
    iteration_dir,
    parse_aside_name,
    parse_iteration_dir,
    parse_temp_name,
    parse_trash_name,
)
from elastic.checkpoint.manifest import Manifest, digest
from elastic.checkpoint.places import Places, share
from elastic.checkpoint.policy import Found
from elastic.checkpoint.seams import Group
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import Survey, judge, read_small, read_tracker


@dataclass(frozen=True, kw_only=True)
class Holding:
    """One directory of one place. Its `found` tells what is wrong with it alone."""

    place: int
    found: Found
    here: tuple[str, ...] = ()
    """Files of its manifest that are there in full length."""
    lacking: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """JSON types only."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Holding:
        """Read back what `to_plain` made, from JSON."""
        found = plain["found"] | {"ancestors": tuple(plain["found"]["ancestors"])}
        return cls(
            place=plain["place"], found=Found(**found), here=tuple(plain["here"]), lacking=tuple(plain["lacking"])
        )


def merge(holdings: Sequence[Holding]) -> tuple[Found, ...]:
    """Every iteration once, by its manifest: it is whole if each file is somewhere."""
    by_digest: dict[str, list[Holding]] = {}
    merged = []
    for each in holdings:
        if each.found.manifest_digest is None:
            merged.append(replace(each.found, problem=f"in place {each.place}: {each.found.problem}"))
        else:
            by_digest.setdefault(each.found.manifest_digest, []).append(each)
    for copies in by_digest.values():
        here = {name for each in copies for name in each.here}
        nowhere = sorted({name for each in copies for name in each.lacking} - here)
        merged.append(
            replace(
                copies[0].found,
                place=iteration_dir(copies[0].found.iteration),
                problem=f"{nowhere[0]} is on no node" if nowhere else None,
                aside=all(each.found.aside for each in copies),
            )
        )
    return tuple(merged)


def survey_places(root: str, *, places: Places, group: Group, storage: Storage) -> Survey:
    """What all places have together, the same on every rank. Every rank calls it.

    Raises:
        OSError: a root cannot be listed.
        PeerLost: from the group.
    """
    told: dict[str, Any] = {"holdings": [], "tracker": None, "fault": ""}
    if places.lead:
        try:
            told["holdings"] = [each.to_plain() for each in holdings_of(root, place=places.mine, storage=storage)]
            told["tracker"] = read_tracker(root, storage=storage).iteration
        except OSError as error:
            told["fault"] = f"place {places.mine}: {error}"
    everyone = share(group, told)
    if faults := [each["fault"] for each in everyone if each["fault"]]:
        raise OSError("; ".join(faults))
    tracked = max((each["tracker"] for each in everyone if each["tracker"] is not None), default=None)
    said = "no tracker anywhere" if tracked is None else f"the newest of the nodes' trackers says {tracked}"
    found = merge([Holding.from_plain(each) for one in everyone for each in one["holdings"]])
    return Survey(tracker=TrackerText(iteration=tracked, reason=said), found=found)


def holdings_of(root: str, *, place: int, storage: Storage) -> list[Holding]:
    """Every iteration in a root: in its place, set aside, or complete but not yet in its place."""
    holdings = []
    for name in storage.names(root):
        out_of_the_way = parse_aside_name(name) is not None or parse_trash_name(name) is not None
        begun = parse_temp_name(name) is not None
        if not (begun or out_of_the_way or parse_iteration_dir(name) is not None):
            continue
        found = judge(root, name, iteration=None, storage=storage, aside=out_of_the_way)
        if found.manifest_digest is not None:
            here, lacking = _present(os.path.join(root, name), storage)
            holdings.append(Holding(place=place, found=found, here=here, lacking=lacking))
        elif not begun:
            number = parse_iteration_dir(name) or 0
            holdings.append(Holding(place=place, found=replace(found, iteration=number)))
    return holdings


def _present(directory: str, storage: Storage) -> tuple[tuple[str, ...], tuple[str, ...]]:
    data = read_small(os.path.join(directory, MANIFEST), storage=storage, limit_bytes=MAX_JSON_BYTES)
    files = Manifest.from_bytes(data).files
    here = {
        name for name, facts in files.items() if storage.size_bytes(os.path.join(directory, name)) == facts.size_bytes
    }
    return tuple(sorted(here)), tuple(sorted(set(files) - here))


def copies_of(root: str, *, manifest_digest: str, storage: Storage) -> list[str]:
    """Directories of a root, under whatever name, that have this manifest."""
    found = []
    for name in storage.names(root):
        path = os.path.join(root, name, MANIFEST)
        try:
            if digest(read_small(path, storage=storage, limit_bytes=MAX_JSON_BYTES)) == manifest_digest:
                found.append(name)
        except (OSError, ValueError):
            continue  # no directory of an iteration, or of another one
    return sorted(found, key=lambda name: (parse_iteration_dir(name) is None, name))


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One file that travels: from the lead of a place to those of others."""

    name: str
    size_bytes: int
    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Routes:
    """What is to travel so that every place has an iteration; `fault`: no place has it all, with the others."""

    deliveries: tuple[Delivery, ...]
    reason: str
    fault: bool = False


def route(sound: Sequence[Mapping[str, int]], *, wanted: Mapping[str, int]) -> Routes:
    """Choose who sends which file to whom.

    Args:
        sound: by place, the files that it has and that are what the manifest says, with their length in bytes.
        wanted: all files of the iteration, with their length in bytes.
    """
    deliveries = []
    sent = [0] * len(sound)
    for name, size_bytes in wanted.items():
        holders = [place for place, files in enumerate(sound) if name in files]
        targets = tuple(place for place, files in enumerate(sound) if name not in files)
        if not holders:
            return Routes(deliveries=(), reason=f"no node has a sound {name}", fault=True)
        if targets:
            source = min(holders, key=lambda place: (sent[place], place))
            sent[source] += size_bytes
            deliveries.append(Delivery(name=name, size_bytes=size_bytes, source=source, targets=targets))
    receivers = sorted({place for each in deliveries for place in each.targets})
    reason = f"{len(deliveries)} files travel to the places {receivers}" if deliveries else "every place has it"
    return Routes(deliveries=tuple(deliveries), reason=reason)
