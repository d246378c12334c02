"""Check that a Ctrl-C and a cancellation whose exception a library loses are raised later."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from indb_tensile.client.kept_interrupts import kept_interrupts, raise_lost_cancellation


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    # A suite in the background of a shell ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_lost_interrupt_is_raised_once_it_is_asked_for() -> None:
    with kept_interrupts() as raise_lost_interrupt:
        raise_lost_interrupt()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            raise_lost_interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_program_and_other_threads_are_left_alone() -> None:
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    with kept_interrupts() as raise_lost_interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        raise_lost_interrupt()
    assert came == [signal.SIGINT]

    def block() -> None:
        with kept_interrupts() as raise_lost_interrupt:
            raise_lost_interrupt()
            came.append(0)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert came == [signal.SIGINT, 0]


def test_a_lost_cancellation_of_a_task_is_raised_once_it_is_asked_for() -> None:
    async def lose() -> None:
        raise_lost_cancellation()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise_lost_cancellation()

    async def cancel() -> bool:
        task = asyncio.create_task(lose())
        await asyncio.sleep(0)
        task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0].__class__ is asyncio.CancelledError

    assert asyncio.run(cancel())
