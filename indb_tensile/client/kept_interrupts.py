"""Keeps a Ctrl-C that a library would lose.

Python raises KeyboardInterrupt between any two instructions. SQLAlchemy pings a pooled connection before it hands
it out, and sets its autocommit mode again in a `finally` clause. If KeyboardInterrupt is raised during the ping,
the connection is still busy, and psycopg refuses to set the mode. Its error replaces KeyboardInterrupt, the ping
counts as failed, and the statement runs on another connection.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def kept_interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if SIGINT came within this block and the exception was lost.

    The function does nothing where the program has a handler of its own for SIGINT, and in other threads than the
    main thread, in which Python runs handlers.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is not signal.default_int_handler:
        yield lambda: None
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.default_int_handler(number, frame)

    def raise_lost() -> None:
        if came:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield raise_lost
    finally:
        signal.signal(signal.SIGINT, handler)


def raise_lost_cancellation() -> None:
    """Raise CancelledError if the current task was cancelled, and the exception was lost."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
