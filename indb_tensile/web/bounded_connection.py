"""Connections of the page: a client that sends nothing, or only a part of a request, does not keep its connection.

The number of connections is bounded, so silent ones would keep others out. uvicorn ends connections that are idle
between two requests; this class also ends those that never send a whole request, and bounds those of one address.
"""

import asyncio
from ipaddress import IPv6Address, ip_address
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

REQUEST_S = 15.0  # from the connection, or from the last response, until a request and its body are there
MOST_OF_ADDRESS = 200  # a browser opens six at a time, and keeps one for each open page


class BoundedConnection(H11Protocol):
    """A connection that ends unless whole requests come, and that is refused if its address has too many.

    Connections from this machine are not counted: all browsers behind a proxy or an SSH tunnel come from there.
    """

    _awaited: asyncio.TimerHandle | None = None
    _answered: RequestResponseCycle | None = None  # the last request whose response is complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in H11Protocol
        """Refuse a connection too many, else wait for a request."""
        super().connection_made(transport)
        network = network_of(self.client[0] if self.client else "")
        if network is not None and self._count(network) > MOST_OF_ADDRESS:
            transport.abort()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._answered = self.cycle
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._settle()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the time limit when the client owes a request or a body, and end it when that is there.

        Bytes that trickle in do not renew the limit.
        """
        owes = self.cycle is None or self.cycle is self._answered or self.cycle.more_body
        if not owes:
            self._settle()
        elif self._awaited is None:
            self._awaited = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _settle(self) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
            self._awaited = None

    def _count(self, network: str) -> int:
        return sum(network_of(_address(other)) == network for other in self.connections)


def network_of(address: str) -> str | None:
    """Return what is counted as one address, or None for this machine.

    Whoever has one address of IPv6 usually has all of its 64-bit network.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address or None
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is None:
            return None if parsed.is_loopback else str(int(parsed) >> 64)
        parsed = parsed.ipv4_mapped
    return None if parsed.is_loopback else str(parsed)


def _address(connection: Any) -> str:
    return connection.client[0] if connection.client else ""
