"""Length-prefixed frames: four bytes of length, most significant first, then the body.

The messages between a controller and its trainers and those on the service's socket are sent in such frames.
"""

import struct
from collections.abc import Callable

from indb_tensile.errors import TensileError

_LENGTH = struct.Struct(">I")
HEADER_BYTES = _LENGTH.size


def frame(body: bytes) -> bytes:
    """Return the body as one frame."""
    return _LENGTH.pack(len(body)) + body


def body_bytes(header: bytes) -> int:
    """Return the length of the body that this header of HEADER_BYTES announces."""
    size_bytes: int = _LENGTH.unpack(header)[0]
    return size_bytes


class FrameBuffer:
    """Collects received bytes and splits them into the bodies of frames.

    A frame may have a body of at most `limit_bytes`. `refusal` returns the error for a longer one. After that error
    the start of the next frame is unknown, so the connection must be closed.
    """

    def __init__(self, limit_bytes: int, refusal: Callable[[int], TensileError]) -> None:
        self._limit_bytes, self._refusal = limit_bytes, refusal
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._bytes += data

    def take(self) -> bytes | None:
        """Return the next complete body, or None while it is incomplete.

        Raises the error of `refusal` if a frame announces a body of more than `limit_bytes`.
        """
        if len(self._bytes) < HEADER_BYTES:
            return None
        size_bytes = body_bytes(bytes(self._bytes[:HEADER_BYTES]))
        if size_bytes > self._limit_bytes:
            raise self._refusal(size_bytes)
        end = HEADER_BYTES + size_bytes
        if len(self._bytes) < end:
            return None
        body = bytes(memoryview(self._bytes)[HEADER_BYTES:end])
        del self._bytes[:end]
        return body
