"""Finds the network interface of this machine that has an address."""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ASK_ADDRESS = 0x8915  # SIOCGIFADDR of Linux, which answers with a request whose bytes 20 to 24 are the address
_REQUEST_BYTES = 40  # of struct ifreq
_VERSION_6 = Path("/proc/net/if_inet6")  # a line has the address in hexadecimal digits first, and the name last


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has this address; None if none has it."""
    wanted = ipaddress.ip_address(address)
    named = _version_6() if wanted.version == 6 else _version_4()
    return next((name for name, own in named if own == wanted or _is_loopback(own, wanted)), None)


def _is_loopback(own: object, wanted: object) -> bool:
    """Return whether both are of the loopback network, all of whose addresses are those of its interface."""
    loopback = ipaddress.ip_network("127.0.0.0/8")
    return all(isinstance(item, ipaddress.IPv4Address) and item in loopback for item in (own, wanted))


def _version_4() -> Iterator[tuple[str, ipaddress.IPv4Address]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_REQUEST_BYTES}s", name.encode())
            with suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(asking.fileno(), _ASK_ADDRESS, request)
                yield name, ipaddress.IPv4Address(answer[20:24])


def _version_6() -> Iterator[tuple[str, ipaddress.IPv6Address]]:
    lines = _VERSION_6.read_text().splitlines() if _VERSION_6.exists() else []
    for line in lines:
        digits, *_, name = line.split()
        yield name, ipaddress.IPv6Address(bytes.fromhex(digits))
