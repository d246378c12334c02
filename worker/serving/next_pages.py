"""Computes the page of a table that a session will ask for next, while the session still returns the one before.

A session asks for a page once it has the page before. Without this, the service would wait for the session's next
request, and the session for its answer, whenever the two take turns at being the slower one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from .prediction_batches import ServedModel
from .requests import Read


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPage:
    """Rows of a table with their encoded answer. `rows` is empty at the end of the table."""

    model: ServedModel
    rows: Sequence[Any]
    answer: bytes


Compute = Callable[[Read, int, str], Awaitable[PredictedPage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A page that is computed ahead of its request."""

    request: Read
    task: asyncio.Task[PredictedPage]


class NextPages:
    """At most one page of each connection. `compute` gets the request, the connection and the server's start time."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._begun: dict[int, _Begun] = {}

    async def take(self, request: Read, connection: int, server_start: str) -> PredictedPage:
        """Return the page, and begin the next one. Raises TensileError if the page cannot be read or computed."""
        begun = self._begun.pop(connection, None)
        if begun is not None and begun.request == request:
            page = await begun.task
        else:
            if begun is not None:
                begun.task.cancel()
            page = await self._compute(request, connection, server_start)
        if page.rows:
            following = msgspec.structs.replace(request, after=request.after + len(page.rows))
            self._begin(following, connection, server_start)
        return page

    def forget(self, connection: int) -> None:
        """Drop the page of a connection that has ended."""
        begun = self._begun.pop(connection, None)
        if begun is not None:
            begun.task.cancel()

    def close(self) -> None:
        """Drop all pages."""
        for connection in tuple(self._begun):
            self.forget(connection)

    def _begin(self, request: Read, connection: int, server_start: str) -> None:
        task = asyncio.ensure_future(self._compute(request, connection, server_start))
        task.add_done_callback(_retrieved)
        self._begun[connection] = _Begun(request=request, task=task)


def _retrieved(task: asyncio.Task[PredictedPage]) -> None:
    """Take the exception of a page that no request may ever wait for, so that asyncio does not log it."""
    with suppress(asyncio.CancelledError):
        task.exception()
