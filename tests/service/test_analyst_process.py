"""The second process, with small programs in the analyst's place."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import pytest

from indb_tensile.errors import UnavailableError
from worker.serving.analyst_process import AnalystProcess

from .fakes import DEADLINE_S, eventually

# Answers {"do": "echo"} with its process id; dies of {"do": "die"}; never answers {"do": "hang"}.
PROGRAM = """
import json, os, socket, sys, time
link = socket.socket(fileno=int(os.environ["TENSILE_ANALYST_FD"])).makefile("rwb")
while header := link.read(4):
    body = json.loads(link.read(int.from_bytes(header, "big")))
    if body["do"] == "die":
        os._exit(7)
    if body["do"] == "hang":
        time.sleep(600)
    answer = json.dumps([os.getpid(), body]).encode()
    link.write(len(answer).to_bytes(4, "big") + answer)
    link.flush()
"""


def run(scene: Callable[[AnalystProcess], Awaitable[None]], limit_s: float = DEADLINE_S) -> None:
    async def whole() -> None:
        analyst = AnalystProcess([sys.executable, "-c", PROGRAM], limit_s=limit_s)
        try:
            await scene(analyst)
        finally:
            analyst.stop()

    asyncio.run(whole())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_requests_take_turns_in_one_process() -> None:
    async def scene(analyst: AnalystProcess) -> None:
        bodies = [json.dumps({"do": "echo", "number": n}).encode() for n in range(20)]
        answers = [json.loads(answer) for answer in await asyncio.gather(*map(analyst.ask, bodies))]
        assert [body for _, body in answers] == [json.loads(body) for body in bodies]
        assert {pid for pid, _ in answers} == {analyst.pid}

    run(scene)


def test_one_that_dies_under_a_request_is_told_and_another_takes_its_place() -> None:
    async def scene(analyst: AnalystProcess) -> None:
        await analyst.start()
        first = analyst.pid
        with pytest.raises(UnavailableError, match="ended with code 7"):
            await analyst.ask(b'{"do": "die"}')
        await analyst.ask(b'{"do": "echo"}')
        assert analyst.pid not in (None, first)

    run(scene)


def test_one_that_was_killed_between_requests_is_replaced_without_anybody_noticing() -> None:
    async def scene(analyst: AnalystProcess) -> None:
        await analyst.ask(b'{"do": "echo"}')
        first = analyst.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        pid, _ = json.loads(await analyst.ask(b'{"do": "echo"}'))
        assert pid != first

    run(scene)


def test_a_request_that_is_given_up_ends_with_its_process_and_the_next_is_served() -> None:
    async def scene(analyst: AnalystProcess) -> None:
        await analyst.start()
        first = analyst.pid
        assert first is not None
        hanging = asyncio.ensure_future(analyst.ask(b'{"do": "hang"}'))
        next_one = asyncio.ensure_future(analyst.ask(b'{"do": "echo"}'))
        await asyncio.sleep(0)
        hanging.cancel()
        pid, _ = json.loads(await next_one)
        assert pid != first
        eventually(lambda: not alive(first))

    run(scene)


def test_stopping_ends_the_process() -> None:
    async def scene(analyst: AnalystProcess) -> None:
        await analyst.start()
        pid = analyst.pid
        assert pid is not None
        assert analyst.stop() == -signal.SIGKILL
        assert not alive(pid)
        assert analyst.stop() is None

    run(scene)


def test_a_request_that_takes_too_long_is_given_up() -> None:
    async def scene(analyst: AnalystProcess) -> None:
        await analyst.start()
        first = analyst.pid
        assert first is not None
        with pytest.raises(UnavailableError, match=r"gave this request up after 0.1 s"):
            await analyst.ask(b'{"do": "hang"}')
        assert analyst.pid is None
        assert not alive(first)

    run(scene, limit_s=0.1)
