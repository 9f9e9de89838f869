"""Foreign text: one error for whatever is wrong with a value that somebody else put into the store."""

from __future__ import annotations

from elastic.errors import StoreError
from elastic.rendezvous import speech


class Reading:
    """Turns what goes wrong while reading foreign text into one error that says so."""

    def __init__(self, what: str, text: str) -> None:
        self._what, self._text = what, text

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError | TypeError | ValueError | AttributeError):
            speech.complain(self._text, what=self._what)
            raise StoreError(
                f"the {self._what} key holds {self._text[:120]!r}, which is not a {self._what} of this version "
                f"({type(error).__name__}: {error}); another program may use the same prefix and job id"
            ) from error
