"""Interface: which of this machine's network interfaces bears an address. Linux; reads what the kernel lists.

gloo binds to the address that this machine's own name resolves to, which on many hosts is loopback, or nothing. Told
an interface, it binds where the other nodes reach this one.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_SIOCGIFCONF = 0x8912
_ENTRY_BYTES = 40
_ROOM_BYTES = 256 * _ENTRY_BYTES
_IPV6 = Path("/proc/net/if_inet6")


def interface_of(address: str) -> str | None:
    """The interface that bears the address; None where none does, or where the address is a name."""
    try:
        wanted = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    found = _with_v6() if wanted.version == 6 else _with_v4()
    return next((name for name, here in found if here == wanted), None)


def _with_v4() -> Iterator[tuple[str, ipaddress.IPv4Address]]:
    room = ctypes.create_string_buffer(_ROOM_BYTES)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, _SIOCGIFCONF, struct.pack("iL", _ROOM_BYTES, ctypes.addressof(room)))
    (length,) = struct.unpack_from("i", answer)
    for at in range(0, length, _ENTRY_BYTES):
        name = room.raw[at : at + 16].split(b"\0", 1)[0].decode()
        # An alias is listed as eth0:1; the interface is eth0.
        yield name.partition(":")[0], ipaddress.IPv4Address(room.raw[at + 20 : at + 24])


def _with_v6() -> Iterator[tuple[str, ipaddress.IPv6Address]]:
    if not _IPV6.exists():
        return
    for line in _IPV6.read_text().splitlines():
        number, *_, name = line.split()
        yield name, ipaddress.IPv6Address(bytes.fromhex(number))
