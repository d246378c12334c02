"""Sends what a service has counted to the catalog, in numbered batches."""

from collections.abc import Awaitable, Callable
from uuid import uuid4

from indb_tensile.catalog.count_batches import CountBatch
from indb_tensile.catalog.prediction_counts import PredictionCounts

from .input_counts import InputCounts


class CountSender:
    """The batches of one service. A batch that could not be stored is sent again, unchanged, before the next one.

    So a batch whose commit was not confirmed is not added twice. What is counted meanwhile belongs to the next batch.
    """

    def __init__(self, source: str, counts: PredictionCounts, inputs: InputCounts) -> None:
        self._source = source
        self._process = uuid4()
        self._counts = counts
        self._inputs = inputs
        self._number = 0
        self._unsent: CountBatch | None = None
        self.failing = False  # whether the last call of `send` failed, and that was logged

    async def send(self, store: Callable[[CountBatch], Awaitable[None]]) -> None:
        """Store all counts by `store`, whose errors it raises; then they are kept for the next call."""
        if self._unsent is not None:
            await store(self._unsent)
            self._unsent, self.failing = None, False
        inputs, totals = await self._inputs.take(), self._counts.take()
        if not totals and not inputs:
            return
        self._number += 1
        self._unsent = CountBatch(
            source=self._source, process=self._process, number=self._number, totals=totals, inputs=inputs
        )
        await store(self._unsent)
        self._unsent = None

    async def drop(self) -> None:
        """Forget all counts, where they can be stored nowhere."""
        self._counts.take()
        await self._inputs.take()
