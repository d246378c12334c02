"""Feeds: data that are read again every second while browsers watch them, once for all browsers that do.

A browser gets changed data as a server-sent event. Unchanged data are not sent again.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from indb_tensile.errors import TensileError
from indb_tensile.monitor.viewer import Viewer
from indb_tensile.web.viewer_threads import ViewerThreads

log = logging.getLogger("web")

PERIOD_S = 1.0
_ALIVE_S = 15.0  # time between two comments on a quiet stream: proxies close a stream that is silent for a minute


@dataclass(eq=False)
class Feed:
    """The data of one page for one viewer. `read` reads them, as long as the feed has watchers."""

    viewer: Viewer
    read: Callable[[], Any]
    threads: ViewerThreads
    period_s: float
    watchers: int = 0
    number: int = 0  # of the newest event
    event: str = ""  # the newest event
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: "asyncio.Task[None] | None" = None

    async def run(self) -> None:
        """Read the data again and again, and wake the watchers after each change."""
        while True:
            event = await self.threads.run(self.viewer, self._event)
            if event != self.event:
                async with self.changed:
                    self.event = event
                    self.number += 1
                    self.changed.notify_all()
            await asyncio.sleep(self.period_s)

    async def has_changed(self, number: int) -> bool:
        """Wait for an event after this number. Returns False if none comes within `_ALIVE_S`."""
        async with self.changed:
            try:
                await asyncio.wait_for(self.changed.wait_for(lambda: self.number > number), _ALIVE_S)
            except TimeoutError:
                return False
            return True

    def _event(self) -> str:
        try:
            return server_event("data", self.read())
        except TensileError as error:
            return server_event("trouble", {"message": error.message, "hint": error.hint})
        except psycopg.Error as error:
            return server_event("trouble", {"message": str(error).strip().partition("\n")[0], "hint": ""})
        except Exception:
            log.exception("a feed of the page")
            return server_event("trouble", {"message": "the page has met a fault of its own; its log has more"})


class Feeds:
    """All feeds that have watchers, by viewer and topic. Lives in one event loop."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self.threads = ViewerThreads()
        self._period_s = period_s
        self._feeds: dict[tuple[int, Hashable], Feed] = {}

    async def watch(
        self, viewer: Viewer, topic: Hashable, read: Callable[[], Any], is_allowed: Callable[[], bool]
    ) -> AsyncIterator[str]:
        """Yield the events of a topic, from its present data on, while the browser stays and `is_allowed`."""
        key = (id(viewer), topic)
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(viewer=viewer, read=read, threads=self.threads, period_s=self._period_s)
            feed.task = asyncio.create_task(feed.run())
        feed.watchers += 1
        try:
            sent = 0
            while is_allowed():
                if feed.number > sent:
                    sent = feed.number
                    yield feed.event
                elif not await feed.has_changed(sent):
                    yield ": alive\n\n"
            yield server_event("ended", {"message": "the session has ended"})
        finally:
            feed.watchers -= 1
            if not feed.watchers and feed.task is not None:
                feed.task.cancel()
                self._feeds.pop(key, None)


def server_event(kind: str, data: object) -> str:
    """Return one server-sent event. JSON has no line break, so one data line holds it."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n"
