"""Keeps the tables that are being read for sessions: at most one for each connection, and few at a time.

Each reading takes a connection to the database, so a session beyond the bound reads its rows itself.
"""

from collections.abc import Callable

from indb_tensile.errors import TensileError, UnavailableError
from indb_tensile.learning.decoding.binary_rows import CopiedRows

from .requests import Read
from .table_reading import TableReading

_MOST = 4  # most readings at a time
_MOST_OF_ROLE = 2  # most of them for one role
_JOIN_S = 5.0


class CannotReadError(UnavailableError):
    """The service cannot read the table. The session has no row of it yet, so it reads the table itself."""


class TableReadings:
    """All readings of a service. All calls come from the event loop."""

    def __init__(self, reader_dsn: Callable[[], str]) -> None:
        self._reader_dsn = reader_dsn
        self._readings: dict[int, TableReading] = {}  # by the number of the session's connection
        self._closing: list[TableReading] = []
        self.begun = 0  # number of readings so far

    async def take(self, connection: int, request: Read, server_start: str) -> CopiedRows | None:
        """Return the rows that follow those that the session has, or None at the end.

        Raises CannotReadError if the session can read the table itself, else the error of the reading.
        """
        try:
            return await self._reading(connection, request, server_start).take()
        except TensileError as error:
            self.forget(connection)
            if request.after:
                raise
            raise CannotReadError(error.message, detail=error.detail, hint=error.hint) from error

    def forget(self, connection: int) -> None:
        """End the reading of a connection that has ended."""
        reading = self._readings.pop(connection, None)
        if reading is not None:
            reading.close()
            self._closing.append(reading)

    def close(self) -> None:
        """End all readings, and wait for their threads."""
        for connection in tuple(self._readings):
            self.forget(connection)
        for reading in self._closing:
            reading.join(_JOIN_S)

    def _reading(self, connection: int, request: Read, server_start: str) -> TableReading:
        """Return the reading of this connection, or begin one: the first, or after another service has ended."""
        reading = self._readings.get(connection)
        if reading is not None and reading.rows_given == request.after:
            return reading
        self.forget(connection)
        self._closing = [each for each in self._closing if not each.ended]
        running = [each for each in (*self._readings.values(), *self._closing) if not each.ended]
        of_role = [each for each in running if each.request.role == request.role]
        if len(running) >= _MOST or len(of_role) >= _MOST_OF_ROLE:
            raise UnavailableError("the service reads as many tables as it may at a time", hint="Ask again later.")
        self.begun += 1
        self._readings[connection] = TableReading(request, server_start, self._reader_dsn)
        return self._readings[connection]
