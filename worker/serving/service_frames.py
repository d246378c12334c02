"""Frames on the service's socket: four bytes of length, most significant first, then one JSON document.

The first frame of a connection is the service's greeting. After that, the service sends one answer for each frame of
the client.
"""

import struct

from indb_tensile.errors import RequestError

PROTOCOL = 2  # version of greeting and requests; the bridge function refuses any other version
MAX_FRAME_BYTES = 32 * 1024 * 1024  # the event loop decodes a frame as a whole; other connections wait meanwhile

_LENGTH = struct.Struct(">I")


class ProtocolError(RequestError):
    """The received bytes are not a request of the service's protocol."""

    sqlstate = "08P01"  # protocol_violation


def frame(body: bytes) -> bytes:
    """Return the body as one frame. Raises ProtocolError if it is longer than a frame may be."""
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"a frame of {len(body)} bytes exceeds the {MAX_FRAME_BYTES} that one may have",
            hint="Ask for fewer rows at a time.",
        )
    return _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Collects received bytes and splits them into the bodies of frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._bytes += data

    def take(self) -> bytes | None:
        """Return the next complete body, or None while it is incomplete.

        Raises ProtocolError for a length beyond MAX_FRAME_BYTES. The start of the next frame is then unknown, so the
        connection must be closed.
        """
        if len(self._bytes) < _LENGTH.size:
            return None
        (size_bytes,) = _LENGTH.unpack_from(self._bytes)
        if size_bytes > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"a frame announces {size_bytes} bytes, more than the {MAX_FRAME_BYTES} that one may have",
                hint="Ask for fewer rows at a time.",
            )
        end = _LENGTH.size + size_bytes
        if len(self._bytes) < end:
            return None
        body = bytes(memoryview(self._bytes)[_LENGTH.size : end])
        del self._bytes[:end]
        return body
