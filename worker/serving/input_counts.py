"""Counts the rows that versions predict by the bins of their inputs, if the drift of their models is measured.

A prediction of few rows only leaves its rows here, so that it takes no longer. A thread counts them: when many rows
wait, and before the counts are stored. A request of many rows waits while the thread has counted no earlier ones, so
few rows wait at any time. Rows leave this module as counts alone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from indb_tensile.catalog.drift import InputAmounts
from indb_tensile.errors import TensileError
from indb_tensile.job import ModelVersionId
from indb_tensile.learning.evaluation.input_bins import InputBins, InputCounter

from .prediction_batches import ServedModel

_MOST_WAITING = 1_000  # rows that wait before they are counted: 3 ms of the thread for a row of 20 columns
_MOST_WAITING_BYTES = 1 << 20  # of the requests of the rows
_MOST_UNCOUNTED = 2  # groups of rows that wait for the thread
_MOST_VERSIONS = 32  # versions whose bins stay in memory between two times at which counts are stored

LoadBins = Callable[[ModelVersionId], Awaitable[Sequence[InputBins]]]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Version:
    """The bins of a version, its counts, and the rows that wait to be counted. Only the thread uses the counter."""

    bins: Sequence[InputBins]
    counter: InputCounter
    waiting: list[Any] = field(default_factory=list)
    waiting_bytes: int = 0
    model: ServedModel | None = None  # that has predicted the waiting rows


class InputCounts:
    """The counts of one service. All calls come from its event loop."""

    def __init__(self, load: LoadBins) -> None:
        self._load = load
        self._versions: dict[ModelVersionId, _Version] = {}  # the one used last is last
        self._uncounted: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inputs")

    def takes_at_once(self, version: ModelVersionId) -> bool:
        """Return whether `add_at_once` may be called: the bins are in memory, and the thread is not behind."""
        return version in self._versions and self._outstanding() < _MOST_UNCOUNTED

    def add_at_once(self, version: ModelVersionId, model: ServedModel, rows: Sequence[Any], size_bytes: int) -> None:
        """Count predicted rows of a request of `size_bytes`, later."""
        own = self._versions.get(version)
        if own is None or not own.bins:
            return
        own.model = model
        own.waiting += rows
        own.waiting_bytes += size_bytes
        if len(own.waiting) >= _MOST_WAITING or own.waiting_bytes >= _MOST_WAITING_BYTES:
            self._hand_over(version, own)

    async def add(self, version: ModelVersionId, model: ServedModel, rows: Sequence[Any], size_bytes: int) -> None:
        """Count predicted rows. Waits while the thread is behind. Faults are logged, since the rows are predicted."""
        if version not in self._versions:
            try:
                bins = await self._load(version)
            except TensileError as error:
                _log.info("the inputs of version %d are not counted: %s", version, error.message)
                return
            self._versions.setdefault(version, _Version(bins=bins, counter=InputCounter(bins)))
        own = self._versions[version] = self._versions.pop(version)
        if isinstance(rows, list):
            self.add_at_once(version, model, rows, size_bytes)
        elif own.bins:  # columns, which are counted together
            self._submit(version, own.counter, own.bins, model, rows)
        while self._outstanding() > _MOST_UNCOUNTED:
            await asyncio.wrap_future(self._uncounted[0])

    async def take(self) -> list[InputAmounts]:
        """Return the counts since the last call. Drops the bins of versions that were not used for long."""
        for version, own in self._versions.items():
            self._hand_over(version, own)
        counters = {version: own.counter for version, own in self._versions.items()}
        while len(self._versions) > _MOST_VERSIONS:
            del self._versions[next(iter(self._versions))]
        if not counters:
            return []
        return await asyncio.get_running_loop().run_in_executor(self._thread, _taken, counters)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _hand_over(self, version: ModelVersionId, own: _Version) -> None:
        """Let the thread count the waiting rows."""
        rows, own.waiting, own.waiting_bytes = own.waiting, [], 0
        if rows and own.model is not None:
            self._submit(version, own.counter, own.bins, own.model, rows)

    def _submit(
        self,
        version: ModelVersionId,
        counter: InputCounter,
        bins: Sequence[InputBins],
        model: ServedModel,
        rows: Sequence[Any],
    ) -> None:
        self._uncounted.append(self._thread.submit(_count, version, counter, bins, model, rows))

    def _outstanding(self) -> int:
        """Return the number of groups of rows that are not counted yet."""
        self._uncounted = [future for future in self._uncounted if not future.done()]
        return len(self._uncounted)


def _count(
    version: ModelVersionId, counter: InputCounter, bins: Sequence[InputBins], model: ServedModel, rows: Sequence[Any]
) -> None:
    try:
        counter.add(model.input_columns(rows, [own.feature for own in bins]))
    except Exception:  # noqa: BLE001 - the thread's outermost frame: a fault here must not end a prediction
        _log.exception("inputs of version %d were not counted", version)


def _taken(counters: dict[ModelVersionId, InputCounter]) -> list[InputAmounts]:
    amounts = []
    for version, counter in counters.items():
        rows, counts = counter.take()
        if rows:
            amounts.append(InputAmounts(version=version, rows=rows, counts=counts))
    return amounts
