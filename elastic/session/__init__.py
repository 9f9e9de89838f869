"""One worker's life in one generation: join the group, restore, step, commit. The public `Session` and `Step`."""

from elastic.session.run import Session
from elastic.session.step import Step

__all__ = ["Session", "Step"]
