"""Drawing: charts as inline SVG that stretches to any width, with their labels as text of the page around it.

Text inside of an SVG would shrink with it and be unreadable on a phone; so there is none but the titles of marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from elastic.observe.curve import Bucket
from elastic.observe.text import number, safe

COLOURS = 12
"""Of the parts of bars, `part0` and so on in the style sheet."""
_WIDTH, _HEIGHT = 1000, 240


@dataclass(frozen=True, kw_only=True)
class Line:
    """A vertical line at x with words for it."""

    x: float
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Where values lie: the lowest and highest of both axes."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> str:
        """Place from the left."""
        return f"{_share(value, self.left, self.right) * _WIDTH:.1f}"

    def y(self, value: float) -> str:
        """Place from the top."""
        return f"{(1 - _share(value, self.low, self.high)) * _HEIGHT:.1f}"


def loss_chart(buckets: Sequence[Bucket], *, lines: Sequence[Line]) -> str:
    """The loss against samples, with the range of what each point stands for."""
    if not buckets:
        return "<p>No step told a loss.</p>"
    frame = Frame(
        left=0,
        right=buckets[-1].stop,
        low=min(each.low for each in buckets),
        high=max(each.high for each in buckets),
    )
    upper = [f"{frame.x(_middle(each))},{frame.y(each.high)}" for each in buckets]
    lower = [f"{frame.x(_middle(each))},{frame.y(each.low)}" for each in reversed(buckets)]
    mean = " ".join(f"{frame.x(_middle(each))},{frame.y(each.mean)}" for each in buckets)
    body = f'<polygon class="band" points="{" ".join(upper + lower)}"/><polyline class="line" points="{mean}"/>'
    label = f"Loss from {number(buckets[0].mean)} to {number(buckets[-1].mean)} over {number(frame.right)} samples"
    return _chart(body + _lines(lines, frame), frame=frame, label=label)


def world_chart(worlds: Sequence[tuple[int, int]], *, end: int, lines: Sequence[Line]) -> str:
    """The world size against samples, as steps."""
    if not worlds:
        return "<p>No step was taken.</p>"
    frame = Frame(left=0, right=max(end, 1), low=0, high=max(size for _, size in worlds) + 1)
    places = [*worlds, (max(end, worlds[-1][0]), worlds[-1][1])]
    points = [f"{frame.x(places[0][0])},{frame.y(places[0][1])}"]
    for (_, before), (at, size) in pairwise(places):
        points += [f"{frame.x(at)},{frame.y(before)}", f"{frame.x(at)},{frame.y(size)}"]
    sizes = [size for _, size in worlds]
    label = f"World size between {min(sizes)} and {max(sizes)}, {worlds[-1][1]} at the end"
    body = f'<polyline class="line" points="{" ".join(points)}"/>'
    return _chart(body + _lines(lines, frame), frame=frame, label=label)


def bars(parts: Sequence[tuple[str, float, float]], *, total: float, label: str) -> str:
    """One row of bars from (name, start, stop); each in a colour of its own, repeated beyond twelve."""
    whole = total or 1.0
    rects = "".join(
        f'<rect class="part{at % COLOURS}" x="{start / whole * _WIDTH:.1f}" y="0" height="20"'
        f' width="{max(0.0, stop - start) / whole * _WIDTH:.1f}">'
        f"<title>{safe(name)}: {stop - start:.3f} s</title></rect>"
        for at, (name, start, stop) in enumerate(parts)
    )
    return _svg(rects, height=20, label=label, kind="bars")


def _chart(body: str, *, frame: Frame, label: str) -> str:
    return (
        f'<div class="chart"><div class="y"><span>{number(frame.high)}</span><span>{number(frame.low)}</span></div>'
        f"{_svg(body, height=_HEIGHT, label=label, kind='plot')}"
        f'<div class="x"><span>{number(frame.left)}</span><span>samples</span><span>{number(frame.right)}</span></div>'
        "</div>"
    )


def _svg(body: str, *, height: int, label: str, kind: str) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none" role="img"'
        f' aria-label="{safe(label)}">{body}</svg>'
    )


def _lines(lines: Sequence[Line], frame: Frame) -> str:
    return "".join(
        f'<line class="{each.kind}" x1="{frame.x(each.x)}" x2="{frame.x(each.x)}" y1="0" y2="{_HEIGHT}">'
        f"<title>{safe(each.text)}</title></line>"
        for each in lines
        if frame.left <= each.x <= frame.right
    )


def _middle(bucket: Bucket) -> float:
    return (bucket.start + bucket.stop) / 2


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
