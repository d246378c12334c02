"""What becomes of each request: predictions here, everything that may take long in the analyst's process."""

import os
from typing import Any, Protocol

from indb_tensile.errors import InvariantError

from .batches import Batches
from .requests import Ping, Predict, parse, success, verb_of
from .residents import Residents

_HERE = frozenset({"predict", "ping"})


class Analyst(Protocol):
    """Who answers what may take long."""

    @property
    def pid(self) -> int | None:
        """Its process, None where none runs."""
        ...

    async def ask(self, body: bytes) -> bytes:
        """The answer's body to the request's body."""
        ...


class Front:
    """Answers each request's body with the answer's body."""

    def __init__(self, *, residents: Residents, batches: Batches, analyst: Analyst, code_version: str) -> None:
        self._residents = residents
        self._batches = batches
        self._analyst = analyst
        self._code_version = code_version

    async def handle(self, body: bytes) -> bytes:
        """The answer. Raises TensileError with what the client is to be told."""
        if verb_of(body) not in _HERE:
            return await self._analyst.ask(body)
        match parse(body):
            case Predict() as request:
                return success({"values": await self._predict(request)})
            case Ping():
                return success(self._state())
            case other:
                raise InvariantError(f"the front has no answer to {type(other).__name__}")

    async def _predict(self, request: Predict) -> list[Any]:
        model = await self._residents.get(request.version)
        return await self._batches.predict(request.version, model, request.rows, request.kind)

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
        }
