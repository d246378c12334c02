"""Check that a connection which never completes its TLS handshake is closed."""

import asyncio
import ssl

from indb_tensile.web.handshake_limit import HandshakeLimitLoop
from indb_tensile.web.listening_address import ListeningAddress
from indb_tensile.web.request_guard import RequestGuard
from indb_tensile.web.web_server import server_config


class QuickLoop(HandshakeLimitLoop):
    """The loop with a limit that a test can wait for."""

    handshake_s = 0.2


async def _silent_and_trickling() -> list[bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    received = []
    async with server:
        for first in (b"", b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            received.append(await asyncio.wait_for(reader.read(), 60))
            writer.close()
    return received


def test_a_client_without_a_handshake_loses_its_connection() -> None:
    with asyncio.Runner(loop_factory=QuickLoop) as runner:
        assert runner.run(_silent_and_trickling()) == [b"", b""]


def test_the_page_runs_in_the_loop_with_the_limit() -> None:
    async def page(*_: object) -> None: ...

    config = server_config(
        RequestGuard(page, hosts=frozenset(), encrypted=False), ListeningAddress(host="127.0.0.1", port=0)
    )
    assert config.get_loop_factory() is HandshakeLimitLoop
