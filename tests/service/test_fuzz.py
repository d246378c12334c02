"""Check that the service answers each whole frame on its socket once, whatever it contains, and keeps running."""

import json
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker.serving.service_frames import MAX_FRAME_BYTES, ProtocolError, RequestBuffer, frame

from .fakes import IDENTITY, Client
from .json_values import SCALARS, VALUES
from .server_thread import ServerThread, predict

CLASSES = ("08", "22", "42", "54", "57")  # classes of SQLSTATEs that requests may cause; XX is an internal fault

_IDENTITY = {"installation": IDENTITY.installation, "server_start": IDENTITY.server_start}

VERBS = st.sampled_from(["predict", "evaluate", "ping", "nothing", ""])

REQUESTS = st.fixed_dictionaries(
    {"verb": VERBS | SCALARS},
    optional={
        "version": st.just(1) | SCALARS,
        "rows": st.lists(VALUES, max_size=4) | VALUES,
        "kind": st.sampled_from(["value", "label", "proba", "vector", "score"]) | SCALARS,
        "part": st.integers(-1, 2),
        "last": st.booleans(),
        "evaluation": SCALARS,
    },
)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with tempfile.TemporaryDirectory() as name:
        server = ServerThread(Path(name) / "sockets", os.geteuid())
        yield server
        server.stop()


@given(requests=st.lists(REQUESTS, min_size=1, max_size=4))
def test_each_request_has_one_answer_without_an_internal_fault(server: ServerThread, requests: list[Any]) -> None:
    with Client(server.path) as client:
        for request in requests:
            client.send(json.dumps({**_IDENTITY, **request}).encode())
        answers = [client.receive() for _ in requests]
        assert predict(client, 1) == {"ok": True, "result": {"values": [1]}}
    for answer in answers:
        assert answer["ok"] or answer["error"]["sqlstate"][:2] in CLASSES or "predicting with" in str(answer), answer


@given(bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=4))
@example(bodies=[b"[" * 100_000, b"{" * 100_000, b'{"verb":' * 50_000, b"\xff\xfe", b'"\\ud800"'])
def test_each_frame_of_any_bytes_has_one_answer(server: ServerThread, bodies: list[bytes]) -> None:
    with Client(server.path) as client:
        client.send_raw(b"".join(map(frame, bodies)))
        answers = [client.receive() for _ in bodies]
        assert predict(client, 1)["ok"]
    assert [answer["ok"] for answer in answers] == [False] * len(bodies)
    assert all(answer["error"]["sqlstate"] in ("08P01", "22023") for answer in answers), answers


@given(stream=st.binary(max_size=200))
@example(stream=b"\xff\xff\xff\xff")
@example(stream=b"GET / HTTP/1.1\r\n\r\n")
def test_any_stream_of_bytes_disturbs_no_other_client(server: ServerThread, stream: bytes) -> None:
    with Client(server.path) as garbling, Client(server.path) as other:
        garbling.send_raw(stream)
        assert predict(other, 1)["ok"]


@given(bodies=st.lists(st.binary(max_size=50), max_size=8), cuts=st.lists(st.integers(1, 40), max_size=30))
def test_frames_are_read_whole_with_cuts_of_any_length(bodies: list[bytes], cuts: list[int]) -> None:
    stream, buffer = b"".join(map(frame, bodies)), RequestBuffer()
    bodies_read = []
    for cut in (*cuts, len(stream)):
        buffer.feed(stream[:cut])
        stream = stream[cut:]
        while (body := buffer.take()) is not None:
            bodies_read.append(body)
    assert bodies_read == bodies


@given(stream=st.binary(max_size=100))
def test_any_stream_is_parsed_or_refused(stream: bytes) -> None:
    buffer = RequestBuffer()
    buffer.feed(stream)
    taken = 0
    try:
        while (body := buffer.take()) is not None:
            taken += 4 + len(body)
    except ProtocolError:
        assert struct.unpack_from(">I", stream, taken)[0] > MAX_FRAME_BYTES
        return
    rest = stream[taken:]
    assert len(rest) < 4 or len(rest) - 4 < struct.unpack_from(">I", rest)[0]
