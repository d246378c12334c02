"""The second process, with a small one in the analyst's place."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing

import pytest

from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.errors import UnavailableError
from tests.controller.fakes import children
from worker.serving.analyst_process import AnalystProcess

from .fakes import DEADLINE_S, eventually

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with closing(ForkServer(ENVIRONMENT)) as made:
        yield made


def run(
    forks: ForkServer,
    scene: Callable[[AnalystProcess], Awaitable[None]],
    *,
    module: str = "tests.service.fake_analyst",
    limit_s: float = DEADLINE_S,
) -> None:
    async def whole() -> None:
        analyst = AnalystProcess(forks, module, limit_s=limit_s)
        try:
            await scene(analyst)
        finally:
            analyst.stop()

    asyncio.run(whole())


async def running(analyst: AnalystProcess) -> int:
    """The process that answers now."""
    return int(json.loads(await analyst.ask(b'{"do": "echo"}'))[0])


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_requests_take_turns_in_one_process(forks: ForkServer) -> None:
    async def scene(analyst: AnalystProcess) -> None:
        bodies = [json.dumps({"do": "echo", "number": n}).encode() for n in range(20)]
        answers = [json.loads(answer) for answer in await asyncio.gather(*map(analyst.ask, bodies))]
        assert [body for _, body in answers] == [json.loads(body) for body in bodies]
        assert {pid for pid, _ in answers} == {analyst.pid}

    run(forks, scene)


def test_one_that_dies_under_a_request_is_told_and_another_takes_its_place(forks: ForkServer) -> None:
    async def scene(analyst: AnalystProcess) -> None:
        first = await running(analyst)
        with pytest.raises(UnavailableError, match="ended with code 7"):
            await analyst.ask(b'{"do": "die"}')
        await analyst.ask(b'{"do": "echo"}')
        assert analyst.pid not in (None, first)

    run(forks, scene)


def test_one_that_was_killed_between_requests_is_replaced_without_anybody_noticing(forks: ForkServer) -> None:
    async def scene(analyst: AnalystProcess) -> None:
        first = await running(analyst)
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        pid = await running(analyst)
        assert pid != first

    run(forks, scene)


def test_a_request_that_is_given_up_ends_with_its_process_and_the_next_is_served(forks: ForkServer) -> None:
    async def scene(analyst: AnalystProcess) -> None:
        first = await running(analyst)
        hanging = asyncio.ensure_future(analyst.ask(b'{"do": "hang"}'))
        next_one = asyncio.ensure_future(analyst.ask(b'{"do": "echo"}'))
        await asyncio.sleep(0)
        hanging.cancel()
        pid, _ = json.loads(await next_one)
        assert pid != first
        eventually(lambda: not alive(first))

    run(forks, scene)


def test_one_that_is_stopped_before_it_has_begun_does_not_stay(forks: ForkServer) -> None:
    before = children() - {forks.pid}

    async def scene(analyst: AnalystProcess) -> None:
        await analyst.start()
        assert analyst.stop() is None
        assert {await running(analyst), forks.pid} == children() - before

    run(forks, scene)


def test_when_what_it_is_forked_from_dies_it_stays_and_the_next_comes_from_another(forks: ForkServer) -> None:
    async def scene(analyst: AnalystProcess) -> None:
        first = await running(analyst)
        killed = forks.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert await running(analyst) == first
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        assert await running(analyst) != first
        assert forks.pid not in (None, killed)

    run(forks, scene)


def test_one_that_cannot_be_started_is_told(forks: ForkServer) -> None:
    async def scene(analyst: AnalystProcess) -> None:
        with pytest.raises(UnavailableError, match="second process could not be started"):
            await analyst.ask(b'{"do": "echo"}')
        assert analyst.pid is None

    run(forks, scene, module="tests.service.absent")


def test_stopping_ends_the_process(forks: ForkServer) -> None:
    async def scene(analyst: AnalystProcess) -> None:
        pid = await running(analyst)
        assert analyst.stop() == -signal.SIGKILL
        assert not alive(pid)
        assert analyst.stop() is None

    run(forks, scene)


def test_a_request_that_takes_too_long_is_given_up(forks: ForkServer) -> None:
    before = children() - {forks.pid}

    async def scene(analyst: AnalystProcess) -> None:
        with pytest.raises(UnavailableError, match=r"cancelled this request after 0.1 s"):
            await analyst.ask(b'{"do": "hang"}')
        assert analyst.pid is None
        assert children() - before == {forks.pid}

    run(forks, scene, limit_s=0.1)
