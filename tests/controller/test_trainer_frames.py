"""Check that messages are framed on a trainer's socket, and that anything else a trainer sends is refused."""

import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.controller.trainer_frames import TrainerFrames
from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.messages import MAX_MESSAGE_BYTES, Adopt, Failed, Message, Ready, TrainerLink, encode


def frames_and_peer() -> tuple[TrainerFrames, socket.socket]:
    own, peer = socket.socketpair()
    return TrainerFrames(own), peer


@given(st.lists(st.integers(1, 200), max_size=20), st.integers(0, 30))
def test_messages_arrive_whole_however_the_stream_is_cut(cuts: list[int], count: int) -> None:
    frames, peer = frames_and_peer()
    sent: list[Message] = [Ready(pid=n) for n in range(count)]
    stream = b"".join(map(encode, sent))
    received: list[Message] = []
    for cut in (*cuts, len(stream)):
        peer.sendall(stream[:cut])
        stream = stream[cut:]
        received += frames.receive()
    assert received == sent
    peer.close()
    frames.close()


def test_message_larger_than_the_socket_buffer_is_sent_in_parts() -> None:
    frames, peer = frames_and_peer()
    large = Failed(job=JobId(1), sqlstate="XX000", message="x" * 5_000_000)
    frames.send(large)
    frames.send(Adopt(generation=1, grant_bytes=1, plans=()))
    assert frames.unsent
    reader = TrainerLink(peer)

    received: list[Message | None] = []
    thread = threading.Thread(target=lambda: received.extend((reader.receive(), reader.receive())))
    thread.start()
    while frames.unsent:
        frames.flush()
    thread.join()
    assert received == [large, Adopt(generation=1, grant_bytes=1, plans=())]
    peer.close()
    frames.close()


def test_closed_socket_is_noticed_after_the_last_message() -> None:
    frames, peer = frames_and_peer()
    peer.sendall(encode(Ready(pid=1)))
    peer.close()
    assert frames.receive() == [Ready(pid=1)]
    assert frames.closed
    frames.send(Ready(pid=2))
    assert not frames.unsent
    frames.close()


@pytest.mark.parametrize("stream", [b"\x00\x00\x00\x02hi", struct.pack(">I", MAX_MESSAGE_BYTES + 1)])
def test_frame_without_a_message_is_refused(stream: bytes) -> None:
    frames, peer = frames_and_peer()
    peer.sendall(stream)
    with pytest.raises(InvariantError):
        frames.receive()
    peer.close()
    frames.close()


GARBAGE = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(
        [
            b"\x91" * 20_000 + b"\x01",  # nested deeper than any message; three fit into the socket's buffer
            b"\x81\xa4type\xa5Ready",
            b"\x82\xa4type\xa5Ready\xa3pid\xc4\x01x",
            b"\x81\xa4type\xa2\xff\xfe",  # not UTF-8
            b"\x83\xa4type\xa8Captured\xa3job\x01\xa6graphs\x91\x82\xa7tensors\x90\xa9operators\x90",
        ]
    ),
)


@given(bodies=st.lists(GARBAGE, min_size=1, max_size=3))
def test_any_frames_of_a_trainer_are_messages_or_are_refused(bodies: list[bytes]) -> None:
    frames, peer = frames_and_peer()
    peer.sendall(b"".join(struct.pack(">I", len(body)) + body for body in bodies))
    messages, refusal = list[Message](), ""
    try:
        messages = frames.receive()
    except InvariantError as error:
        refusal = error.message
    assert all(isinstance(message, Message) for message in messages)
    assert not refusal or "is not one that controllers and trainers send" in refusal
    peer.close()
    frames.close()


@given(stream=st.binary(max_size=100))
def test_any_stream_of_a_trainer_is_incomplete_or_refused(stream: bytes) -> None:
    frames, peer = frames_and_peer()
    peer.sendall(stream)
    try:
        frames.receive()
    except InvariantError:
        pass
    else:
        assert not frames.closed
    peer.close()
    frames.close()
