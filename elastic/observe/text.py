"""Text: what goes into a page, made harmless, and numbers as people read them."""

from __future__ import annotations

import html

from elastic.observe.words import plain

_LONGEST = 2000


def safe(text: object) -> str:
    """Any text for the inside of an element or of an attribute: no markup, no control characters, not endless."""
    shown = plain(str(text))
    return html.escape(shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} ...")


def number(value: float) -> str:
    """A number in at most four digits that matter, thousands apart."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", "\N{THIN SPACE}")
    return f"{value:.4g}"


def table(head: tuple[str, ...], rows: list[tuple[object, ...]], *, label: str) -> str:
    """Rows that may be scrolled sideways, with a finger or with the keyboard."""
    cells = "".join(f'<th scope="col">{safe(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{safe(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{safe(label)}">'
        f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )
