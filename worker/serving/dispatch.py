"""Dispatches requests: predictions and evaluations run in this process, requests that may take long in the analyst.

The event loop serves all connections. So that they are not delayed, long frames are decoded one per turn of the loop,
and a long answer is encoded in pieces.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

from indb_tensile.catalog.prediction_counts import PredictionCounts
from indb_tensile.errors import InvariantError, TensileError
from indb_tensile.learning.decoding.binary_rows import BinaryRows

from .answers import FORECAST
from .attributions import attribution_rows
from .evaluation_requests import Evaluations
from .identity import IdentityCheck
from .input_counts import InputCounts
from .model_cache import ModelCache
from .next_pages import NextPages, PredictedPage
from .prediction_batches import Batches, ServedModel
from .requests import (
    TABLE_KINDS,
    AnyRequest,
    Attribute,
    Evaluate,
    Features,
    Header,
    NextSteps,
    Ping,
    Predict,
    Read,
    RowError,
    encode,
    header_of,
    parse,
    success,
    success_of,
    success_of_texts,
)
from .service_frames import MAX_FRAME_BYTES, ProtocolError, split_body
from .table_readings import CannotReadError, TableReadings

_OWN_VERBS = frozenset({"predict", "read", "evaluate", "attribute", "nextsteps", "features", "ping"})
_LONG_BYTES = 1 << 16  # size of a long frame, whose decoding takes half a millisecond or more
_PIECE_NUMBERS = 20_000  # numbers of one piece of an answer, whose encoding takes about 10 ms


class Analyst(Protocol):
    """The process that answers requests that may take long."""

    @property
    def pid(self) -> int | None:
        """The id of the process, or None if none runs."""
        ...

    async def ask(self, body: bytes) -> bytes:
        """Return the body of the answer to the request with this body."""
        ...


class RequestDispatcher:
    """Answers requests: takes the body of a request and returns the body of its answer."""

    def __init__(
        self,
        *,
        gate: IdentityCheck,
        residents: ModelCache,
        batches: Batches,
        analyst: Analyst,
        readings: TableReadings,
        inputs: InputCounts,
        code_version: str,
    ) -> None:
        self._gate = gate
        self._residents = residents
        self._batches = batches
        self._evaluations = Evaluations(batches)
        self._analyst = analyst
        self._readings = readings
        self._next_pages = NextPages(self._computed_page)
        self._inputs = inputs
        self._code_version = code_version
        self.counts = PredictionCounts()
        self._long = asyncio.Lock()

    async def handle(self, body: bytes, connection: int) -> bytes:
        """Return the answer. Raises TensileError with the message for the client."""
        body, records = split_body(body)
        header, request = await self._read(body)
        await self._gate.check(header.asks)
        match request:
            case None:
                return await self._analyst.ask(body)
            case Predict() | Read():
                return await self._counted(request, records, connection, header.server_start, len(body))
            case Features():
                model = await self._residents.get(request.version)
                if (forecast := model.forecast()) is not None:
                    return success({"forecast": forecast})
                features = [{"name": name, "kind": kind} for name, kind in model.features(request.side)]
                return success({"features": features, "kind": model.own_kind(), "several": model.several()})
            case Evaluate():
                model = await self._residents.get(request.version)
                owner = self._residents.owner(request.version)
                return success(await self._evaluations.add(connection, request, model, owner=owner))
            case Attribute():
                model = await self._residents.get(request.version)
                owner = self._residents.owner(request.version)
                return success({"rows": await attribution_rows(self._batches, request, model, owner=owner)})
            case NextSteps():
                model = await self._residents.get(request.version)
                owner = self._residents.owner(request.version)
                return success(
                    (await self._batches.predict(request.version, model, [request], FORECAST, owner=owner))[0]
                )
            case Ping():
                return success(self._state())
            case other:
                raise InvariantError(f"the dispatcher has no answer to {type(other).__name__}")

    def handle_at_once(self, body: bytes) -> bytes | None:
        """Return the answer to a prediction of few rows, or None if the request has to wait for anything."""
        if len(body) >= _LONG_BYTES or body.startswith(b"\0"):
            return None
        header, request = _parse(body)
        if not isinstance(request, Predict) or request.kind in TABLE_KINDS or not self._gate.admits(header.asks):
            return None
        model = self._residents.get_resident(request.version)
        if model is None or (request.measured and not self._inputs.takes_at_once(request.version)):
            return None
        owner = self._residents.owner(request.version)
        started_s, rows = time.monotonic(), request.marked_rows
        try:
            values = self._batches.predict_at_once(request.version, model, rows, request.kind, owner=owner)
        except TensileError:
            self.counts.refused(time.monotonic() - started_s)
            raise
        if values is None:
            return None
        self.counts.answered(len(rows), time.monotonic() - started_s)
        if request.measured:
            self._inputs.add_at_once(request.version, model, rows, len(body))
        return success({"values": values})

    def forget(self, connection: int) -> None:
        """Drop the evaluations and end the reading of a connection that has ended."""
        self._evaluations.forget(connection)
        self._next_pages.forget(connection)
        self._readings.forget(connection)

    def close(self) -> None:
        """End the threads that compute metrics, count inputs, and read tables."""
        self._inputs.close()
        self._next_pages.close()
        self._evaluations.close()
        self._readings.close()

    async def _counted(
        self, request: Predict | Read, records: bytes, connection: int, server_start: str, size_bytes: int
    ) -> bytes:
        """Return the answer to a request for predictions, and count it with its rows and its time."""
        started_s = time.monotonic()
        try:
            if isinstance(request, Predict):
                rows, answer = await self._predicted(request, records, size_bytes)
            else:
                rows, answer = await self._page(request, connection, server_start)
        except TensileError:
            self.counts.refused(time.monotonic() - started_s)
            raise
        self.counts.answered(rows, time.monotonic() - started_s)
        return answer

    async def _predicted(self, request: Predict, records: bytes, size_bytes: int) -> tuple[int, bytes]:
        model = await self._residents.get(request.version)
        rows = request.rows_of(records)
        values = await self._predict(request, model, rows, self._residents.owner(request.version))
        if request.measured:
            await self._inputs.add(request.version, model, rows, size_bytes)
        if request.kind not in TABLE_KINDS:
            return len(rows), await _encode_values(values)
        keys = {"keys": rows.keys()} if isinstance(rows, BinaryRows) else {}
        return len(rows), success_of_texts(len(rows), model.table_answer(values, request.kind) | keys)

    async def _page(self, request: Read, connection: int, server_start: str) -> tuple[int, bytes]:
        """Predict the next rows of a table. Returns their number and the answer, which may say why none was read."""
        page = await self._next_pages.take(request, connection, server_start)
        if request.measured and page.rows:
            await self._inputs.add(request.version, page.model, page.rows, 0)
        return len(page.rows), page.answer

    async def _computed_page(self, request: Read, connection: int, server_start: str) -> PredictedPage:
        """Read and predict the next rows of a table, which are not counted before the session asks for them."""
        model = await self._residents.get(request.version)
        try:
            rows = await self._readings.take(connection, request, server_start)
        except CannotReadError as error:
            return PredictedPage(model=model, rows=(), answer=success({"refused": error.message}))
        if rows is None:
            return PredictedPage(model=model, rows=(), answer=success({"rows": 0}))
        values = await self._predict(request, model, rows, self._residents.owner(request.version))
        texts = model.table_answer(values, request.kind) | {"keys": rows.keys()}
        return PredictedPage(model=model, rows=rows, answer=success_of_texts(len(rows), texts))

    async def _predict(
        self, request: Predict | Read, model: ServedModel, rows: Sequence[Any], owner: int
    ) -> list[Any]:
        try:
            return await self._batches.predict(request.version, model, rows, request.kind, owner=owner)
        except RowError as error:
            if (
                isinstance(rows, BinaryRows)
                and not error.detail
                and (keys := rows.part(error.row, error.row + 1).keys())
            ):
                error.detail = f"The row's key is {keys[1:-1]}."
            raise

    async def _read(self, body: bytes) -> tuple[Header, AnyRequest | None]:
        """Return the header, and the request if this process answers it."""
        if len(body) < _LONG_BYTES:
            return _parse(body)
        async with self._long:  # one long frame per turn of the loop
            await asyncio.sleep(0)
            return _parse(body)

    def _state(self) -> dict[str, Any]:
        counters = self._batches.counters
        return {
            "version": self._code_version,
            "pid": os.getpid(),
            "analyst_pid": self._analyst.pid,
            "models": list(self._residents.versions),
            "resident_bytes": self._residents.size_bytes,
            "requests": counters.requests,
            "batches": counters.batches,
            "rows": counters.rows,
            "readings": self._readings.begun,
        }


def _parse(body: bytes) -> tuple[Header, AnyRequest | None]:
    header = header_of(body)
    return header, parse(body) if header.verb in _OWN_VERBS else None


async def _encode_values(values: list[Any]) -> bytes:
    """Encode the answer to a prediction. Raises ProtocolError if it is larger than a frame may be."""
    width = len(values[0]) if values and isinstance(values[0], list | dict) else 1
    step = max(1, _PIECE_NUMBERS // max(1, width))
    if len(values) <= step:
        return success({"values": values})
    pieces: list[bytes] = []
    size_bytes = 0
    for begin in range(0, len(values), step):
        pieces.append(encode(values[begin : begin + step])[1:-1])
        size_bytes += len(pieces[-1])
        if size_bytes > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"the answer to {len(values)} rows exceeds the {MAX_FRAME_BYTES} bytes that a frame may have",
                hint="Ask for fewer rows at a time.",
            )
        await asyncio.sleep(0)
    return success_of(b'{"values":[' + b",".join(pieces) + b"]}")
