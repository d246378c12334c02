"""Check how the service runs its second process, with a fake analyst."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.errors import UnavailableError
from tests.controller.fakes import children
from worker.serving.analyst_process import AnalystProcess

from .fakes import DEADLINE_S, wait_until

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with closing(ForkServer(ENVIRONMENT)) as forks:
        yield forks


def run(
    forks: ForkServer,
    scenario: Callable[[AnalystProcess], Awaitable[None]],
    *,
    module: str = "tests.service.fake_analyst",
    limit_s: float = DEADLINE_S,
) -> None:
    async def run_scenario() -> None:
        analyst = AnalystProcess(forks, module, limit_s=limit_s)
        try:
            await scenario(analyst)
        finally:
            analyst.stop()

    asyncio.run(run_scenario())


async def pid_of_answer(analyst: AnalystProcess) -> int:
    """Send a request, and return the id of the process that answers it."""
    return int(json.loads(await analyst.ask(b'{"do": "echo"}'))[0])


def living_analysts() -> set[int]:
    """Return the children that run an analyst, by the name that the fork server gave them.

    Orphans of other modules' processes become children of this process at any time, under other names.
    """
    names = {}
    for pid in children():
        with suppress(FileNotFoundError, ProcessLookupError):
            names[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
    return {pid for pid, name in names.items() if name.startswith("tensile fake")}


def exists(pid: int) -> bool:
    """Return whether the process exists, be it as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_concurrent_requests_are_answered_in_turn_by_one_process(forks: ForkServer) -> None:
    async def scenario(analyst: AnalystProcess) -> None:
        bodies = [json.dumps({"do": "echo", "number": n}).encode() for n in range(20)]
        answers = [json.loads(answer) for answer in await asyncio.gather(*map(analyst.ask, bodies))]
        assert [body for _, body in answers] == [json.loads(body) for body in bodies]
        assert {pid for pid, _ in answers} == {analyst.pid}

    run(forks, scenario)


def test_process_that_dies_during_a_request_is_reported_and_replaced(forks: ForkServer) -> None:
    async def scenario(analyst: AnalystProcess) -> None:
        first = await pid_of_answer(analyst)
        with pytest.raises(UnavailableError, match="ended with code 7"):
            await analyst.ask(b'{"do": "die"}')
        await analyst.ask(b'{"do": "echo"}')
        assert analyst.pid not in (None, first)

    run(forks, scenario)


def test_process_killed_between_requests_is_replaced_silently(forks: ForkServer) -> None:
    async def scenario(analyst: AnalystProcess) -> None:
        first = await pid_of_answer(analyst)
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        pid = await pid_of_answer(analyst)
        assert pid != first

    run(forks, scenario)


def test_cancelled_request_ends_its_process_and_the_next_request_is_answered(forks: ForkServer) -> None:
    async def scenario(analyst: AnalystProcess) -> None:
        first = await pid_of_answer(analyst)
        hanging = asyncio.ensure_future(analyst.ask(b'{"do": "hang"}'))
        next_request = asyncio.ensure_future(analyst.ask(b'{"do": "echo"}'))
        await asyncio.sleep(0)
        hanging.cancel()
        pid, _ = json.loads(await next_request)
        assert pid != first
        wait_until(lambda: not exists(first))

    run(forks, scenario)


def test_process_that_is_stopped_before_its_start_ends(forks: ForkServer) -> None:
    async def scenario(analyst: AnalystProcess) -> None:
        await analyst.start()
        assert analyst.stop() is None
        assert {await pid_of_answer(analyst)} == living_analysts()

    run(forks, scenario)


def test_process_survives_its_fork_server_and_the_next_process_gets_a_new_server(forks: ForkServer) -> None:
    async def scenario(analyst: AnalystProcess) -> None:
        first = await pid_of_answer(analyst)
        killed = forks.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert await pid_of_answer(analyst) == first
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        assert await pid_of_answer(analyst) != first
        assert forks.pid not in (None, killed)

    run(forks, scenario)


def test_process_that_cannot_start_is_reported(forks: ForkServer) -> None:
    async def scenario(analyst: AnalystProcess) -> None:
        with pytest.raises(UnavailableError, match="second process could not be started"):
            await analyst.ask(b'{"do": "echo"}')
        assert analyst.pid is None

    run(forks, scenario, module="tests.service.absent")


def test_stop_ends_the_process(forks: ForkServer) -> None:
    async def scenario(analyst: AnalystProcess) -> None:
        pid = await pid_of_answer(analyst)
        assert analyst.stop() == -signal.SIGKILL
        assert not exists(pid)
        assert analyst.stop() is None

    run(forks, scenario)


def test_request_that_takes_too_long_is_cancelled(forks: ForkServer) -> None:
    before = children() - {forks.pid}

    async def scenario(analyst: AnalystProcess) -> None:
        with pytest.raises(UnavailableError, match=r"cancelled this request after 0.1 s"):
            await analyst.ask(b'{"do": "hang"}')
        assert analyst.pid is None
        assert children() - before == {forks.pid}

    run(forks, scenario, limit_s=0.1)
