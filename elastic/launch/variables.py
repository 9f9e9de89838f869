"""Variables that an agent sets for its workers, in its own environment: they inherit it, and torchelastic offers no
other way.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

THREADS = "OMP_NUM_THREADS"


class Exported:
    """What was set, and what stood there before."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ, self._outer = environ, dict[str, str | None]()

    def set(self, variables: Mapping[str, str]) -> None:
        """Until `restore`."""
        for name in variables:
            self._outer.setdefault(name, self._environ.get(name))
        self._environ.update(variables)

    def restore(self) -> None:
        """All as it was before the first `set`."""
        for name, value in self._outer.items():
            if value is None:
                self._environ.pop(name, None)
            else:
                self._environ[name] = value


def threads_for(wanted: int, *, environ: Mapping[str, str]) -> dict[str, str]:
    """How many threads torch starts in a worker, as a variable, unless somebody set it already; 0: that is torch's."""
    return {THREADS: str(wanted)} if wanted and not environ.get(THREADS) else {}
