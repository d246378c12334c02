"""Runs the requests of viewers on threads, and lets each viewer use only a few of them.

A viewer has two connections, and its calls wait for each other until a connection is free. If all of them waited on
threads, one browser with many requests would leave no thread to the viewers of other roles.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool

from indb_tensile.monitor.viewer import Viewer

Result = TypeVar("Result")

_MOST_OF_VIEWER = 4  # one for each of the two connections, and the next call for each


class ViewerThreads:
    """Counts the threads that each viewer may still take. Lives in one event loop."""

    def __init__(self) -> None:
        self._free: WeakKeyDictionary[Viewer, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, viewer: Viewer, work: Callable[[], Result]) -> Result:
        """Run the work of a viewer on a thread, once the viewer has fewer than `_MOST_OF_VIEWER` threads."""
        free = self._free.get(viewer)
        if free is None:
            free = self._free[viewer] = asyncio.Semaphore(_MOST_OF_VIEWER)
        async with free:
            return await run_in_threadpool(work)
