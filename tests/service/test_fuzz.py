"""Whatever arrives at the service's socket: each whole frame has one answer, and the service goes on."""

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
from .test_server import Running, predict

CLASSES = ("08", "22", "42", "54", "57")  # of SQLSTATEs; XX is a fault of ours
_ASKS = {"installation": IDENTITY.installation, "server_start": IDENTITY.server_start}

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), 2**63, 2**64, 10**19]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["\x00", "1e400", "NaN", "infinity", "2020-13-45", "x" * 5000]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "y", ""]), inner, max_size=4)
    ),
    max_leaves=12,
)
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
def served() -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as name:
        made = Running(Path(name) / "sockets", os.geteuid())
        yield made
        made.stop()


@given(requests=st.lists(REQUESTS, min_size=1, max_size=4))
def test_each_request_has_one_answer_that_is_no_fault_of_ours(served: Running, requests: list[Any]) -> None:
    with Client(served.path) as client:
        for request in requests:
            client.send(json.dumps({**_ASKS, **request}).encode())
        answers = [client.receive() for _ in requests]
        assert predict(client, 1) == {"ok": True, "result": {"values": [1]}}
    for answer in answers:
        assert answer["ok"] or answer["error"]["sqlstate"][:2] in CLASSES or "predicting with" in str(answer), answer


@given(bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=4))
@example(bodies=[b"[" * 100_000, b"{" * 100_000, b'{"verb":' * 50_000, b"\xff\xfe", b'"\\ud800"'])
def test_each_frame_of_any_bytes_has_one_answer(served: Running, bodies: list[bytes]) -> None:
    with Client(served.path) as client:
        client.send_raw(b"".join(map(frame, bodies)))
        answers = [client.receive() for _ in bodies]
        assert predict(client, 1)["ok"]
    assert [answer["ok"] for answer in answers] == [False] * len(bodies)
    assert all(answer["error"]["sqlstate"] in ("08P01", "22023") for answer in answers), answers


@given(stream=st.binary(max_size=200))
@example(stream=b"\xff\xff\xff\xff")
@example(stream=b"GET / HTTP/1.1\r\n\r\n")
def test_any_stream_of_bytes_disturbs_nobody_else(served: Running, stream: bytes) -> None:
    with Client(served.path) as garbling, Client(served.path) as other:
        garbling.send_raw(stream)
        assert predict(other, 1)["ok"]


@given(bodies=st.lists(st.binary(max_size=50), max_size=8), cuts=st.lists(st.integers(1, 40), max_size=30))
def test_frames_come_out_as_they_went_in_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream, buffer = b"".join(map(frame, bodies)), RequestBuffer()
    found = []
    for cut in (*cuts, len(stream)):
        buffer.feed(stream[:cut])
        stream = stream[cut:]
        while (body := buffer.take()) is not None:
            found.append(body)
    assert found == bodies


@given(stream=st.binary(max_size=100))
def test_the_frame_parser_gives_bodies_or_refuses(stream: bytes) -> None:
    buffer = RequestBuffer()
    buffer.feed(stream)
    taken = 0
    try:
        while (body := buffer.take()) is not None:
            taken += 4 + len(body)
    except ProtocolError:
        assert struct.unpack_from(">I", stream, taken)[0] > MAX_FRAME_BYTES
        return
    left = stream[taken:]
    assert len(left) < 4 or len(left) - 4 < struct.unpack_from(">I", left)[0]
