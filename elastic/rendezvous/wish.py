"""Wish: what a person wants of a whole job: another size, or that it rests. One key, which the leader reads. Pure."""

from __future__ import annotations

import dataclasses
import enum
import json
from dataclasses import dataclass

from elastic.errors import StoreError
from elastic.rendezvous.view import LeaderView, Limits


class What(enum.StrEnum):
    """What was asked for last."""

    SCALE = "scale"
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """All that is wished at present. It ends with the job: whoever starts that anew begins with torchrun's limits.

    `max_nodes` 0: as torchrun was told. `reason`: who asked for `what`, and why; `paused_by` the same of the pause.
    `told`: it is in the events.
    """

    min_nodes: int = 0
    max_nodes: int = 0
    paused: bool = False
    what: What = What.RESUME
    reason: str = ""
    paused_by: str = ""
    told: bool = False


NO_WISH = Wish(told=True)


def scaled(wish: Wish, *, min_nodes: int, max_nodes: int, reason: str) -> Wish:
    """The wish with another size."""
    return dataclasses.replace(
        wish, min_nodes=min_nodes, max_nodes=max_nodes, what=What.SCALE, reason=reason, told=False
    )


def paused(wish: Wish, *, reason: str) -> Wish:
    """The wish that the job rests."""
    return dataclasses.replace(wish, paused=True, paused_by=reason, what=What.PAUSE, reason=reason, told=False)


def resumed(wish: Wish, *, reason: str) -> Wish:
    """The wish that it goes on."""
    return dataclasses.replace(wish, paused=False, paused_by="", what=What.RESUME, reason=reason, told=False)


def under(view: LeaderView, *, limits: Limits, wish: Wish) -> LeaderView:
    """The view of a leader that was started with these limits and knows of this wish."""
    if wish.max_nodes:
        limits = dataclasses.replace(limits, min_nodes=wish.min_nodes, max_nodes=wish.max_nodes)
    return dataclasses.replace(
        view, limits=limits, resized=wish.max_nodes > 0, paused=wish.paused, asked=wish.paused_by or wish.reason
    )


def wish_to_json(wish: Wish) -> str:
    """The text of the key."""
    return json.dumps(dataclasses.asdict(wish), separators=(",", ":"))


def wish_from_json(text: str) -> Wish:
    """Read the key; a field that is not known is passed over.

    Raises:
        StoreError: the text is no wish.
    """
    try:
        raw = json.loads(text)
        known = {field.name for field in dataclasses.fields(Wish)}
        wish = Wish(**{name: value for name, value in raw.items() if name in known} | {"what": What(raw["what"])})
        for field in dataclasses.fields(Wish):
            held, meant = getattr(wish, field.name), type(getattr(NO_WISH, field.name))
            if type(held) is not meant:  # a bool would pass for an int, too
                raise ValueError(f"{field.name} is {held!r}, not {meant.__name__}")
        if not 0 <= wish.min_nodes <= wish.max_nodes:
            raise ValueError("it is out of range")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"the wish key holds {text[:120]!r}, which is no wish ({error}); the next one asked for takes its place"
        ) from error
    return wish
