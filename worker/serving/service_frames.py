"""Frames on the service's socket (framing.py): each holds one JSON document.

The first frame of a connection is the service's greeting. After that, the service sends one answer for each frame of
the client.
"""

from indb_tensile import framing
from indb_tensile.errors import RequestError
from indb_tensile.framing import FrameBuffer

PROTOCOL = 2  # version of greeting and requests; the bridge function refuses any other version
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


class RequestBuffer(FrameBuffer):
    """Collects the bytes of one connection and splits them into requests; `take` raises ProtocolError."""

    def __init__(self) -> None:
        super().__init__(MAX_FRAME_BYTES, _refusal)


def _refusal(size_bytes: int) -> ProtocolError:
    return ProtocolError(
        f"a frame announces {size_bytes} bytes, more than the {MAX_FRAME_BYTES} that one may have",
        hint="Ask for fewer rows at a time.",
    )
