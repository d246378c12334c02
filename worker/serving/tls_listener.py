"""Accepts connections of database servers on other hosts, by TLS with certificates of both sides.

Whoever reaches the address may open connections, so one without a handshake costs little: it ends after HANDSHAKE_S,
their number is bounded, and it holds up no other connection. What is received before the handshake is not read as a
request.
"""

import asyncio
import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from indb_tensile.controller.service_certificates import ServiceCertificates
from indb_tensile.errors import UnavailableError

from .endpoint import BACKLOG

HANDSHAKE_S = 5.0
SHUTDOWN_S = 1.0  # within which a client confirms the end of a connection; an idle session reads nothing
MOST_HANDSHAKES = 256  # more than a server of 100 sessions begins at once, and few descriptors
_PAUSE_S = 0.1  # without a free descriptor, until one may be free

_log = logging.getLogger(__name__)


class TlsListener:
    """Listens on an IP address and a port. Raises UnavailableError if that is impossible.

    A client is answered if its certificate is from the authority of `certificates` and names `client_name`.
    """

    def __init__(self, host: str, port: int, certificates: ServiceCertificates, *, client_name: str) -> None:
        self._certificates = certificates
        self._client_name = client_name
        self._handshakes: dict[asyncio.Task[None], str] = {}  # the client's host by handshake, the oldest first
        self._failures = 0
        self._accepting: asyncio.Task[None] | None = None
        self._socket = _listen(host, port)
        bound = self._socket.getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    def start(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Start to accept connections; each gets its protocol after its handshake."""
        self._accepting = asyncio.ensure_future(self._accept(make_protocol))

    async def stop(self) -> None:
        """Stop accepting, and end connections without a handshake."""
        tasks = [task for task in (self._accepting, *self._handshakes) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    def refusal(self, certificate: dict[str, Any]) -> str:
        """Return why a client with this certificate, which the authority has signed, is refused; empty: it is not."""
        names = certificate_names(certificate)
        if self._client_name in names:
            return ""
        own = ", ".join(names) or "nobody"
        return f"its service_client_name is {self._client_name}, and this server's certificate is for {own}"

    async def _accept(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        while True:
            try:
                connection, address = await asyncio.get_running_loop().sock_accept(self._socket)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
                continue
            if len(self._handshakes) >= MOST_HANDSHAKES:
                self._end_oldest()
            handshake = asyncio.ensure_future(self._shake_hands(connection, address[0], make_protocol))
            self._handshakes[handshake] = address[0]
            handshake.add_done_callback(partial(self._forget, connection))

    def _end_oldest(self) -> None:
        """End the oldest handshake of the host that has most of them open, so that others still have a turn."""
        ((crowd, _),) = Counter(self._handshakes.values()).most_common(1)
        oldest = next(task for task, host in self._handshakes.items() if host == crowd)
        del self._handshakes[oldest]
        oldest.cancel()

    def _forget(self, connection: socket.socket, handshake: asyncio.Task[None]) -> None:
        self._handshakes.pop(handshake, None)
        if handshake.cancelled():  # perhaps before it began, when nothing else closes the connection
            connection.close()

    async def _shake_hands(
        self, connection: socket.socket, host: str, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)  # a client's host may vanish
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                make_protocol,
                connection,
                ssl=self._certificates.context(),
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th ...: attempts must not fill the log
                _log.warning("refused a connection from %s (%d so far): %s", host, self._failures, error)


def certificate_names(certificate: dict[str, Any]) -> list[str]:
    """Return the DNS names and common names of a certificate, as `ssl` has decoded it."""
    alternative = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return [*dict.fromkeys([*alternative, *common])]


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise UnavailableError(
            f"the service cannot listen on {place}: {os.strerror(error.errno or 0)}",
            hint=_WAYS_OUT.get(error.errno, ""),
        ) from error
    return listener


_WAYS_OUT: dict[int | None, str] = {
    errno.EADDRINUSE: "Give each controller of this machine a port of its own in TENSILE_SERVICE_ADDRESS; port 0 "
    "takes a free one.",
    errno.EADDRNOTAVAIL: "Name an address of this machine in TENSILE_SERVICE_ADDRESS (ip address shows them).",
}
