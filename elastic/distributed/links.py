"""Links: the TCP sockets that a process group opened, so that it can be cut off from its peers at any moment.

A rank that waits for a dead or frozen peer can be freed by nothing that gloo offers; shutting down its own sockets
does it in milliseconds, from any thread. And a rank whose collective has failed must shut them down, too: others may
wait for it, and its sockets to them stay open as long as anything refers to the group.

gloo tells nobody whose message has come or gone in part; such a collective is given up (see `waiting`). What torch
itself waits for, as it does for dealt out parameters in each pass, ends by the deadline that the agent has for each
survivor.

Sockets are found by what a process has open before and after a group was made, in Linux's /proc. Where that does not
exist nothing is found: then a rank that does not come free must be killed.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_OPEN = Path("/proc/self/fd")

_AGAIN_S = 0.02
"""How soon what a group opens while it is made, and has been cut off already, is cut too."""

Opened = tuple[int, int]
"""A descriptor and the inode of the socket behind it: numbers of descriptors are used again, those of inodes not."""


class Links:
    """The sockets opened since this was made, until `settle`. All methods are safe from any thread."""

    def __init__(self) -> None:
        self._before = _open_sockets()
        self._own: frozenset[Opened] | None = None
        self._connected: frozenset[Opened] = frozenset()
        self._lock = threading.Lock()
        self._is_cut = False
        self.also: Callable[[], object] | None = None
        """Done with each cut: what ends the waiting where it is for no socket of this process."""
        self._made = threading.Event()
        self._follower: threading.Thread | None = None

    @property
    def is_cut(self) -> bool:
        """Whether somebody has cut them: whatever a collective says from then on, the group is over."""
        return self._is_cut

    def settle(self) -> None:
        """The group is made, or given up: what this process opens from now on is not the group's."""
        with self._lock:
            if self._own is None:
                self._own = _open_sockets() - self._before
                self._connected = frozenset(each for each in self._own if _with(*each, _is_connected))
        self._made.set()
        if self._follower is not None:
            self._follower.join()

    def ended(self, *, count: int) -> bool:
        """Whether gloo has closed a connection, as it does where the peer has.

        `count`: the connections of such a group. False where there were others: something else in this process opened
        them while the group was made, and may close them.
        """
        return len(self._connected) == count and not all(_is_open(*each) for each in self._connected)

    def cut(self) -> int:
        """Shut down every socket of the group, now; how many. Any number of times.

        While the group is still being made, what it opens later is shut down, too, until `settle`.
        """
        with self._lock:
            self._is_cut = True
            if self._own is None and self._follower is None:
                self._follower = threading.Thread(target=self._follow, name="elastic-links", daemon=True)
                self._follower.start()
            count = self._shut_down_all()
        if self.also is not None:
            self.also()
        return count

    def _shut_down_all(self) -> int:
        own = _open_sockets() - self._before if self._own is None else self._own
        return sum(_shut_down(fd, inode) for fd, inode in own)

    def _follow(self) -> None:
        while not self._made.wait(_AGAIN_S):
            with self._lock:
                self._shut_down_all()


def _open_sockets() -> frozenset[Opened]:
    return frozenset(_sockets())


def _sockets() -> Iterator[Opened]:
    if not _OPEN.is_dir():
        return
    for name in os.listdir(_OPEN):
        with suppress(OSError):  # closed meanwhile: by another thread, or the listing's own
            found = os.fstat(int(name))
            if stat.S_ISSOCK(found.st_mode):
                yield int(name), found.st_ino


def _is_open(fd: int, inode: int) -> bool:
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False


def _shut_down(fd: int, inode: int) -> bool:
    """Whether this socket was there, connected, and is shut down now."""
    return _with(fd, inode, _shut_down_link)


def _with(fd: int, inode: int, do: Callable[[socket.socket], bool]) -> bool:
    """What is said of this socket; False where it is not there any more."""
    try:
        copy = os.dup(fd)  # nobody else can close this one, so that it cannot become another file meanwhile
    except OSError:
        return False
    try:
        found = os.fstat(copy)
        if not stat.S_ISSOCK(found.st_mode) or found.st_ino != inode:
            return False
        link = socket.socket(fileno=copy)
        try:
            return do(link)
        finally:
            link.detach()
    finally:
        os.close(copy)


def _is_connected(link: socket.socket) -> bool:
    if link.family not in (socket.AF_INET, socket.AF_INET6) or link.type != socket.SOCK_STREAM:
        return False
    try:
        link.getpeername()
    except OSError:
        return False  # it listens, or is not connected any more
    return True


def _shut_down_link(link: socket.socket) -> bool:
    """Never closed: gloo owns the descriptor and waits on it. And gloo ends the whole process when its listening
    socket is shut down."""
    if not _is_connected(link):
        return False
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True
