"""A fake of PL/Python's module `plpy`, with scripted rows for each statement."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from indb_tensile.request import copyable_relation
from indb_tensile.sql_api import (
    service_connection,
    snapshot_copy,
    spi,
    stored_models,
    training_request,
    training_table,
    version_lookup,
)
from indb_tensile.sql_api.spi import ENCODING
from tests.sql.fakes import INSTALLATION, FakeService

Row = Mapping[str, Any]
Json = dict[str, Any]


# What a lookup finds of the deployed version of a model.
DEPLOYED: Row = {
    "version_id": 700,
    "number": 1,
    "target": "label",
    "metrics": "{}",
    "transform": None,
    "measure_drift": False,
}


class FakeResult(list[Row]):
    """The rows of a statement."""

    def nrows(self) -> int:
        return len(self)


class FakePlpy:
    """Returns the scripted rows of a statement, or none. While `cancelled` is set, a cancel request is pending."""

    class SPIError(Exception):
        """The exception that PL/Python raises for an SQL error."""

        sqlstate = "57014"
        spidata = ("57014", None, "be patient")

    def __init__(self, rows: Mapping[str, Sequence[Row]] | None = None) -> None:
        self.rows = rows or {}
        self.notices: list[str] = []
        self.executed: list[tuple[str, tuple[object, ...]]] = []
        self.cancelled = False

    def prepare(self, query: str, types: Sequence[str]) -> str:
        return query

    def execute(self, plan: Any, arguments: Sequence[object] = ()) -> Iterable[Row]:
        if plan == "select 1" and self.cancelled:
            raise self.SPIError("canceling statement due to user request")
        if plan == ENCODING:
            return FakeResult([{"encoding": "UTF8"}])
        self.executed.append((plan, tuple(arguments)))
        return FakeResult(next((rows for text, rows in self.rows.items() if text in plan), []))

    def cursor(self, query: str) -> "FakeCursor":
        return FakeCursor(self.execute(query))

    def notice(self, message: str) -> None:
        self.notices.append(message)

    def quote_ident(self, name: str) -> str:
        return f'"{name}"'

    def quote_literal(self, text: str) -> str:
        return f"'{text}'"


class FakeCursor:
    """A cursor over rows that exist already."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = iter(rows)

    def fetch(self, count: int) -> Iterable[Row]:
        return list(itertools.islice(self._rows, count))

    def close(self) -> None:
        self._rows = iter(())


def address_of(service: FakeService) -> Row:
    """Return the row with the address of the only service."""
    return {
        "directory": str(service.directory),
        "names": [service.name],
        "addresses": None,
        "host_names": None,
        "tls_directory": None,
        "installation": INSTALLATION,
        "server_start": "1",
        "standby": False,
    }


RELATION = {
    "name": "iris",
    "schema": "public",
    "kind": "r",
    "caller": "alice",
    "caller_enters": True,
    "caller_reads": True,
}
FAMILY = [{"schema": "public", "name": "iris", "kind": "r", "persistence": "p", "secured": False, "place": "self"}]
_ORDINARY = {"enumerated": False, "generated": False, "sent_safely": True, "sent_as_text": False, "category": ""}
COLUMNS = [
    {"name": "id", "number": 1, "type": "bigint", "base": "int8", "key": True, "primary_key": True} | _ORDINARY,
    {"name": "petal", "number": 2, "type": "real", "base": "float4", "key": False, "primary_key": False} | _ORDINARY,
    {"name": "label", "number": 3, "type": "text", "base": "text", "key": False, "primary_key": False} | _ORDINARY,
]
SNAPSHOT = {"role": "alice", "snapshot": "1:1:", "statement": "now", "unchanged": False}
TABLE_STATISTICS = {"rows": 60, "known": 60, "value": "a", "last_value": "b", "infinite": 0}


def plpy_with(**changed: Sequence[Row]) -> FakePlpy:
    """Return a database in which `m` can be trained on the table with oid 5, as job 7."""
    rows: dict[str, Sequence[Row]] = {
        "relation": [RELATION],
        "family": FAMILY,
        "columns": COLUMNS,
        "look": [TABLE_STATISTICS],
        "first_rows": [{"c0": [1.5, 2.5], "c1": [3, 4]}],
        "enqueue": [{"job_id": 7}],
        "path": [{"path": "pg_catalog, pg_temp"}],
        "snapshot": [SNAPSHOT],
    }
    rows.update(changed)
    texts = {
        "relation": training_table.RELATION,
        "family": copyable_relation.FAMILY,
        "columns": copyable_relation.COLUMNS,
        "look": "as infinite",
        "first_rows": "as first_rows",
        "enqueue": training_request.ENQUEUE,
        "model": stored_models.MODEL,
        "key": training_request.JOB_OF_KEY,
        "services": service_connection.SERVICES,
        "version": version_lookup.VERSION,
        "snapshot": version_lookup.SNAPSHOT,
        "path": spi.CURRENT_PATH,
        "transaction": snapshot_copy.TRANSACTION,
        "made": snapshot_copy.MAKE,
        "plan": "explain",
        "limit": snapshot_copy.LIMIT,
        "named": snapshot_copy.NAMED_NOW,
        "sealed": snapshot_copy.SEAL,
    }
    return FakePlpy({texts[name]: rows_of_name for name, rows_of_name in rows.items()})
