"""Check how requests are framed on the service's socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.serving.service_frames import MAX_FRAME_BYTES, ProtocolError, RequestBuffer, frame


def bodies_of(buffer: RequestBuffer) -> list[bytes]:
    return list(iter(buffer.take, None))


@given(bodies=st.lists(st.binary(max_size=40), max_size=6), cut_bytes=st.integers(1, 50))
def test_frames_are_read_whole_however_the_stream_is_cut(bodies: list[bytes], cut_bytes: int) -> None:
    stream = b"".join(frame(body) for body in bodies)
    buffer = RequestBuffer()
    taken: list[bytes] = []
    for begin in range(0, len(stream), cut_bytes):
        buffer.feed(stream[begin : begin + cut_bytes])
        taken += bodies_of(buffer)
    assert taken == bodies


def test_incomplete_frame_is_buffered_until_the_rest_arrives() -> None:
    buffer = RequestBuffer()
    buffer.feed(frame(b"whole") + frame(b"half")[:6])
    assert bodies_of(buffer) == [b"whole"]
    buffer.feed(frame(b"half")[6:])
    assert bodies_of(buffer) == [b"half"]


def test_frame_with_a_too_large_length_is_refused_before_its_body_arrives() -> None:
    buffer = RequestBuffer()
    buffer.feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match=f"announces {MAX_FRAME_BYTES + 1} bytes"):
        buffer.take()


def test_too_long_body_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="exceeds"):
        frame(bytes(MAX_FRAME_BYTES + 1))
