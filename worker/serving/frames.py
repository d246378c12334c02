"""Frames on the service's socket: four bytes of length, most significant first, then one JSON document.

The service sends the first frame of a connection, its greeting; then each frame of the client has one answer.
"""

import struct

from indb_tensile.errors import RequestError

PROTOCOL = 2  # of greeting and requests; a bridge refuses another one
MAX_FRAME_BYTES = 32 * 1024 * 1024  # the event loop decodes a frame in one piece: all other connections wait as long

_LENGTH = struct.Struct(">I")


class ProtocolError(RequestError):
    """What arrived is not a request of the service's protocol."""

    sqlstate = "08P01"  # protocol_violation


def frame(body: bytes) -> bytes:
    """The body as one frame. Raises ProtocolError where it is longer than a frame may be."""
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"a frame of {len(body)} bytes exceeds the {MAX_FRAME_BYTES} that one may have",
            hint="ask for fewer rows at a time",
        )
    return _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Bytes in as they arrive, whole bodies out."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Append what arrived."""
        self._bytes += data

    def take(self) -> bytes | None:
        """The next whole body, or None while it is incomplete.

        Raises ProtocolError for a length beyond MAX_FRAME_BYTES: what follows cannot be told apart any more,
        so the connection must end.
        """
        if len(self._bytes) < _LENGTH.size:
            return None
        (size_bytes,) = _LENGTH.unpack_from(self._bytes)
        if size_bytes > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"a frame announces {size_bytes} bytes, more than the {MAX_FRAME_BYTES} that one may have",
                hint="ask for fewer rows at a time",
            )
        end = _LENGTH.size + size_bytes
        if len(self._bytes) < end:
            return None
        body = bytes(memoryview(self._bytes)[_LENGTH.size : end])
        del self._bytes[:end]
        return body
