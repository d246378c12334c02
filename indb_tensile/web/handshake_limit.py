"""An event loop whose servers end connections that do not complete their TLS handshake in time.

uvicorn has no setting for this, and asyncio waits for a minute. A connection that has no handshake yet is counted
nowhere, so many silent ones would take the descriptors of the page.
"""

import asyncio
from typing import Any

HANDSHAKE_S = 10.0


class HandshakeLimitLoop(asyncio.SelectorEventLoop):
    """The usual event loop, with this limit on handshakes of servers."""

    handshake_s = HANDSHAKE_S

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """Create a server as asyncio does, with the limit if it speaks TLS."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", self.handshake_s)
        return await super().create_server(*arguments, **options)
