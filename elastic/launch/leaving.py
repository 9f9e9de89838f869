"""Leaving: everything that may ask a node to leave, brought to one place: a drain, a cloud's notice, a signal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

from elastic.config.choices import Notices
from elastic.config.model import Settings
from elastic.events import Emit, LeaveAsked
from elastic.launch.notices import NoticeWatch
from elastic.rendezvous.drain import DrainWatch

logger = logging.getLogger(__name__)


class Wishes:
    """Hears of wishes from their own threads, tells of them as events and hands them to `leave` in words."""

    def __init__(self, *, emit: Emit, leave: Callable[[str], None]) -> None:
        self._emit, self._leave = emit, leave

    def drained(self, reason: str) -> None:
        """A person wants it."""
        self._take("drain", f"drained ({reason})", reason)

    def noticed(self, kind: Notices) -> Callable[[str], None]:
        """What hears of a cloud's notice."""
        return lambda reason: self._take(str(kind), f"a notice ({reason})", reason)

    def _take(self, source: str, why: str, reason: str) -> None:
        logger.info("this node is to leave: %s", why)
        self._leave(why)  # first: who hears of it may send the signal that belongs to it, which is no second wish
        self._emit(LeaveAsked(source=source, reason=reason))


def listen(wishes: Wishes, *, settings: Settings, drain: DrainWatch | None, stack: ExitStack) -> None:
    """Start to listen for wishes; the stack ends that."""
    if drain is not None:
        stack.callback(drain.stop)
        drain.start()
    node = settings.node
    if node.notices is not Notices.OFF:
        watch = NoticeWatch(
            node.notices,
            address=node.notices_address,
            pause_s=node.notices_pause_s,
            on_notice=wishes.noticed(node.notices),
        )
        stack.callback(watch.stop)
        watch.start()
