"""Writes rows into the table of a prediction, in one transaction that also ends the job.

So a table is complete or empty, whatever kills this process, and exactly one attempt of a job fills it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

import psycopg
from psycopg import sql

from indb_tensile.catalog.connection import Connection
from indb_tensile.learning.relation.unchecked_texts import unchecked_texts

from .answer_rows import HEADER, TRAILER


class OutputError(Exception):
    """PostgreSQL's error of a write, which must not be taken for an error of reading the relation."""

    def __init__(self, cause: psycopg.Error) -> None:
        super().__init__(str(cause))
        self.cause = cause


class OutputTable:
    """One table of predictions. Leaving the context rolls back what is not committed."""

    def __init__(self, connection: Connection, table: sql.Identifier) -> None:
        self._connection = connection
        self._table = table
        self._transaction: AbstractContextManager[psycopg.Transaction] | None = None
        self._copying = ExitStack()
        self._copy: psycopg.Copy | None = None

    def __enter__(self) -> "OutputTable":
        return self

    def __exit__(self, *_: object) -> None:
        self._roll_back()

    def begin(self, columns: Sequence[str]) -> None:
        """Begin a transaction that writes these columns. Rolls back an earlier one."""
        self._roll_back()
        statement = sql.SQL("copy {} ({}) from stdin (format binary)").format(
            self._table, sql.SQL(", ").join(map(sql.Identifier, columns))
        )
        copying = statement.as_bytes(self._connection)
        try:
            transaction = self._connection.transaction()
            transaction.__enter__()
            self._transaction = transaction
            self._connection.execute("set local statement_timeout = '4h'")  # as long as the relation's COPY may take
            self._copying.enter_context(unchecked_texts(self._connection))  # a key may have bytes that are not UTF-8
            cursor = self._copying.enter_context(self._connection.cursor())
            self._copy = self._copying.enter_context(cursor.copy(copying))
            self._copy.write(HEADER)
        except psycopg.Error as error:
            raise OutputError(error) from error

    def write(self, rows: bytes) -> None:
        """Write rows in COPY's binary format. Raises OutputError."""
        assert self._copy is not None
        try:
            self._copy.write(rows)
        except psycopg.Error as error:
            raise OutputError(error) from error

    def commit(self, end: Callable[[Connection], None]) -> None:
        """Call `end` in the same transaction, and commit. Raises psycopg's errors and those of `end`."""
        assert self._copy is not None
        assert self._transaction is not None
        self._copy.write(TRAILER)
        self._copy = None
        self._copying.close()
        end(self._connection)
        transaction, self._transaction = self._transaction, None
        transaction.__exit__(None, None, None)

    def _roll_back(self) -> None:
        rollback, self._copy = psycopg.Rollback(), None
        transaction, self._transaction = self._transaction, None
        try:
            self._copying.__exit__(type(rollback), rollback, None)
            if transaction is not None:
                transaction.__exit__(type(rollback), rollback, None)
        except psycopg.Error:
            self._connection.close()  # the server rolls back then
