import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.controller.frames import Frames
from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.link import MAX_MESSAGE_BYTES, Adopt, Failed, Link, Message, Ready, encode


def pair() -> tuple[Frames, socket.socket]:
    ours, theirs = socket.socketpair()
    return Frames(ours), theirs


@given(st.lists(st.integers(1, 200), max_size=20), st.integers(0, 30))
def test_messages_arrive_whole_however_they_are_cut(cuts: list[int], count: int) -> None:
    frames, theirs = pair()
    sent: list[Message] = [Ready(pid=n) for n in range(count)]
    stream = b"".join(map(encode, sent))
    received: list[Message] = []
    for cut in (*cuts, len(stream)):
        theirs.sendall(stream[:cut])
        stream = stream[cut:]
        received += frames.receive()
    assert received == sent
    theirs.close()
    frames.close()


def test_what_the_socket_does_not_take_is_sent_later() -> None:
    frames, theirs = pair()
    large = Failed(job=JobId(1), sqlstate="XX000", message="x" * 5_000_000)
    frames.send(large)
    frames.send(Adopt(generation=1, grant_bytes=1, plans=()))
    assert frames.unsent
    reader = Link(theirs)

    received: list[Message | None] = []
    thread = threading.Thread(target=lambda: received.extend((reader.receive(), reader.receive())))
    thread.start()
    while frames.unsent:
        frames.flush()
    thread.join()
    assert received == [large, Adopt(generation=1, grant_bytes=1, plans=())]
    theirs.close()
    frames.close()


def test_a_closed_end_is_noticed_after_the_last_message() -> None:
    frames, theirs = pair()
    theirs.sendall(encode(Ready(pid=1)))
    theirs.close()
    assert frames.receive() == [Ready(pid=1)]
    assert frames.closed
    frames.send(Ready(pid=2))
    assert not frames.unsent
    frames.close()


@pytest.mark.parametrize("stream", [b"\x00\x00\x00\x02hi", struct.pack(">I", MAX_MESSAGE_BYTES + 1)])
def test_what_is_no_message_is_refused(stream: bytes) -> None:
    frames, theirs = pair()
    theirs.sendall(stream)
    with pytest.raises(InvariantError):
        frames.receive()
    theirs.close()
    frames.close()
