"""Reads a table for a session that predicts its rows, on a thread, by COPY as the role `tensile_reader`.

The session has exported its snapshot, so the rows are those that it would read itself, and has locked the table. It
asks only for plain tables that its own transaction has not written (sql_api/shared_reading.py). The reader trusts
none of this: learning/relation/relation_scan.py checks in the catalog that the session's role may select the columns,
and that the relation, its partitions and its inheritance children are plain tables without row-level security. This
module checks that the columns have the types that the session has named. COPY of a table evaluates no expressions, so
no function of a user runs (learning/relation/relation_reader.py).

The reading ends when all rows are read, when the session's connection to the service closes, when the session's
transaction ends, or when the session waits for a lock of this reader. It also ends if whether the session still wants
the rows cannot be found out for half a minute.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.reader_connection import open_reader
from indb_tensile.errors import DatabaseError, TensileError
from indb_tensile.job import Relation
from indb_tensile.learning.decoding.binary_rows import CopiedRows
from indb_tensile.learning.decoding.copybinary import SegmentSink
from indb_tensile.learning.decoding.copyrows import Segment
from indb_tensile.learning.relation.locked_relation import ReadLimits
from indb_tensile.learning.relation.relation_scan import ScannedColumns, scan
from indb_tensile.learning.relation.relationsql import statement
from indb_tensile.learning.storage.columns import CopyEncoding

from .requests import Read
from .row_handover import ClosedError, RowHandover
from .row_pages import RowPages

_LOCK_S = 0.1  # longest wait for the table's lock
_MOST_UNANSWERED = 15  # checks in a row that may fail before the reading ends: one every two seconds

log = logging.getLogger(__name__)


class TableReading:
    """The rows of one relation. The constructor starts the thread, and needs a running event loop.

    `server_start` is the start time of the session's server, which distinguishes it from its replicas.
    """

    def __init__(self, request: Read, server_start: str, reader_dsn: Callable[[], str]) -> None:
        self.request = request
        self.rows_given = request.after  # also counts the rows that earlier readings gave to the session
        self._server_start = server_start
        self._reader_dsn = reader_dsn
        self._handover = RowHandover(asyncio.get_running_loop())
        self._connection: Connection | None = None
        self._pages: RowPages | None = None  # the rows of the scan, once it has begun; there is only one scan
        self._unanswered = 0  # failed checks in a row of whether the session still wants the rows
        self._thread = threading.Thread(target=self._run, name="reading", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the thread has ended, and with it the connection."""
        return not self._thread.is_alive()

    async def take(self) -> CopiedRows | None:
        """Return the next rows, or None at the end. Raises TensileError if the rows cannot be read."""
        rows = await self._handover.take()
        self.rows_given += 0 if rows is None else len(rows)
        return rows

    def close(self) -> None:
        """End the reading; the thread ends at once or as soon as the server has answered."""
        self._handover.close()
        connection = self._connection
        if connection is not None and not self.ended:
            # A COPY that sends no rows for long, for example of a table of dead rows, would keep the thread.
            threading.Thread(target=_cancel, args=(connection,), daemon=True).start()

    def join(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for the end of the thread."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._read()
            self._handover.end()
        except ClosedError:
            pass
        except TensileError as error:
            self._fail(error)
        except psycopg.Error as error:
            self._fail(DatabaseError(f"reading table {self._title} failed: {str(error).strip()}"))
        except Exception as error:
            log.exception("reading table %s failed", self._title)
            self._fail(DatabaseError(f"reading table {self._title} failed: {type(error).__name__}: {error}"))

    def _fail(self, error: TensileError) -> None:
        if not self._handover.closed:
            log.info("%s", error.message)
        with suppress(ClosedError):
            self._handover.end(error)

    @property
    def _title(self) -> str:
        return f"{self.request.schema}.{self.request.relation}"

    def _read(self) -> None:
        request = self.request
        names = dict.fromkeys(name for name, _ in (*request.fields, *request.key_fields))
        with open_reader(self._reader_dsn(), application_name="tensile service (reading)") as reader:
            self._connection = reader
            _require_server(reader, self._server_start)
            if self._handover.closed:
                raise ClosedError
            scan(
                reader,
                Relation(oid=request.oid, schema=request.schema, name=request.relation),
                ScannedColumns(features=tuple(names), keys=(), numbers={}, types={}),
                self._begin,
                role_oid=request.role,
                # The session holds its lock already, so the reader waits only if another transaction waits for an
                # exclusive lock.
                limits=ReadLimits(lock_s=_LOCK_S, snapshot=request.snapshot),
            )
            if self._pages is not None:
                self._pages.end()

    def _begin(self, fields: Sequence[tuple[str, CopyEncoding]], _: int | None) -> SegmentSink:
        """Return the function that receives the rows. It drops the first `after` rows, which the session has already.

        The session has them from an earlier reading, perhaps of another service. A second scan, which begins if the
        table was changed during the first, is refused, as are columns of other types than the session's.
        """
        expected = dict((*self.request.fields, *self.request.key_fields))
        if self._pages is not None or dict(fields) != expected:
            raise DatabaseError(f"table {self._title} was changed while it was read", hint="Run the statement again.")
        skipped = self.request.after
        key_names = tuple(name for name, _ in self.request.keys)

        def hand_over(page: list[Segment]) -> None:
            nonlocal skipped
            rows = CopiedRows(page, fields, key_names)
            left = rows[min(skipped, len(rows)) :]
            skipped -= len(rows) - len(left)
            if len(left):
                self._handover.put(left, self._require_caller)

        self._pages = RowPages(hand_over)
        return self._pages.add

    def _require_caller(self) -> None:
        """Raise ClosedError if the session's transaction has ended, or waits for a lock of this reader.

        The handover calls this every two seconds while the event loop takes no rows. The check needs a connection of
        its own, because the COPY occupies the reader's.
        """
        assert self._connection is not None
        parameters = {
            "transaction": self.request.transaction,
            "pid": self.request.pid,
            "reader": self._connection.info.backend_pid,
        }
        try:
            with open_reader(self._reader_dsn(), application_name="tensile service (watching)") as watching:
                still_wanted = watching.execute(statement("still_wanted"), parameters).fetchone()
        except (TensileError, psycopg.Error):  # for example while the server accepts no more connections
            self._unanswered += 1
            if self._unanswered > _MOST_UNANSWERED:
                raise
            return
        self._unanswered = 0
        if still_wanted != (True,):
            log.info("the reading of table %s ends: its session no longer wants it", self._title)
            raise ClosedError


def _require_server(connection: Connection, server_start: str) -> None:
    """Refuse a reader's connection to another server, on which the snapshot's name could mean another snapshot."""
    if connection.execute(statement("server_start")).fetchone() != (server_start,):
        raise DatabaseError(
            "the reader's connection leads to another server than the session's", hint="See TENSILE_READER_DSN."
        )


def _cancel(connection: Connection) -> None:
    with suppress(psycopg.Error):
        connection.cancel()
