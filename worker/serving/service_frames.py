"""Frames on the service's socket (framing.py): each holds one JSON document, and may have a binary part.

The binary part of a request are rows, and that of an answer are texts. A frame with a binary part begins with a zero
byte and the size of the JSON in four bytes; the JSON and the binary part follow.

The first frame of a connection is the service's greeting. After that, the service sends one answer for each frame of
the client.
"""

import struct
from collections.abc import Sequence

from indb_tensile import framing
from indb_tensile.errors import RequestError
from indb_tensile.framing import FrameBuffer

PROTOCOL = 6  # version of greeting and requests; the bridge function refuses any other version
MAX_FRAME_BYTES = 32 * 1024 * 1024  # the event loop decodes a frame as a whole; other connections wait meanwhile


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
    return framing.frame(body)


def body_with(document: bytes, parts: Sequence[bytes]) -> bytes:
    """Return a body of this JSON and this binary part."""
    return b"".join((_PREFIX.pack(len(document)), document, *parts))


def split_body(body: bytes) -> tuple[bytes, bytes]:
    """Return the JSON of a body and its binary part, which is empty in most requests."""
    if not body.startswith(b"\0"):
        return body, b""
    if len(body) < _PREFIX.size or (end := _PREFIX.size + _PREFIX.unpack_from(body)[0]) > len(body):
        raise ProtocolError(f"a request of {len(body)} bytes ends within its JSON")
    return body[_PREFIX.size : end], body[end:]


_PREFIX = struct.Struct(">xI")


class RequestBuffer(FrameBuffer):
    """Collects the bytes of one connection and splits them into requests; `take` raises ProtocolError."""

    def __init__(self) -> None:
        super().__init__(MAX_FRAME_BYTES, _refusal)


def _refusal(size_bytes: int) -> ProtocolError:
    return ProtocolError(
        f"a frame announces {size_bytes} bytes, more than the {MAX_FRAME_BYTES} that one may have",
        hint="Ask for fewer rows at a time.",
    )
