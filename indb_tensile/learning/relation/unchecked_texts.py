"""Copies the texts of a database in SQL_ASCII as the bytes that are stored.

PostgreSQL converts nothing from or to SQL_ASCII. It refuses to send a text that is not valid UTF-8 to a client in
UTF-8, with an error that names neither the table nor the column.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from indb_tensile.learning.relation.relationsql import statement


@contextmanager
def unchecked_texts(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Let a COPY of this transaction send or take the bytes of texts unchecked, if the database is in SQL_ASCII.

    Statements of the block must be given as bytes: psycopg takes the session's encoding for ASCII.
    """
    if connection.info.parameter_status("server_encoding") != "SQL_ASCII":
        yield
        return
    connection.execute(statement("send_stored_bytes"))
    yield
    connection.execute(statement("send_utf8"))
