"""Runs the requests of viewers on threads, and lets each viewer use only a few of them.

The calls of one viewer wait for one another's connection. If they waited on threads, one browser with many requests
would leave no thread to the other roles.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool

from indb_tensile.monitor.viewer import Viewer

Result = TypeVar("Result")

_MOST_OF_VIEWER = 4  # two that use a connection each, and the next ones


class ViewerThreads:
    """The threads that viewers take. Lives in one event loop."""

    def __init__(self) -> None:
        self._free: WeakKeyDictionary[Viewer, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, viewer: Viewer, work: Callable[[], Result]) -> Result:
        """Run the work of a viewer on a thread, once one of those that it may take is free."""
        free = self._free.get(viewer)
        if free is None:
            free = self._free[viewer] = asyncio.Semaphore(_MOST_OF_VIEWER)
        async with free:
            return await run_in_threadpool(work)
