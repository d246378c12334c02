"""Predicts the target for every row of a relation, and returns the answers page by page.

A reading is one pass over the rows of a relation. `predict_table` prepares it: it checks the request and builds the
query. `pages` begins it: it opens a cursor with the caller's own rights, sends the rows in parts to the service, and
yields a page of answers for each part. While the service computes one part, the session reads the next. A row is
encoded as a record of `record_send`, or as JSON where a column's type has no binary form that the service reads. If
`may_share` allows it, the service reads the rows itself (shared_reading.py), and the session only declares the
cursor, so that PostgreSQL checks the caller's rights and locks the relation.

PL/Python does not close the generators of a statement that failed. So the readings of a session are kept in
dictionaries of this module, are limited in number, and those of earlier transactions are closed at the next reading.
"""

# ruff: noqa: S608 - names are quoted by quote_ident or format(%I), and cursors are named here

import itertools
import json
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import RequestError
from ..request.pair_sides import check_side
from ..request.request_fields import read_integer, read_model_name, read_names, read_text
from . import service_connection
from .refusals import DENIED, NOT_READY, TOO_MUCH, RefusalError
from .relation_columns import (
    INTEGERS,
    describe_version,
    is_plain_key,
    key_columns,
    kinds_agree,
    named_relation,
    type_of,
)
from .row_features import raw_columns, with_features
from .shared_reading import Page, may_share, shared_pages, transaction_of
from .spi import Json, Plpy, Row, callers_path, fetch
from .version_lookup import find_version

_FIRST_ROWS = 10  # rows of the first fetch, so that the first answers come quickly
# A request has one more PART_BYTES for every 200 columns, because the service has a fixed cost per request and
# column.
_COLUMNS_PER_PART = 200
_MOST_PART_MULTIPLE = 8  # most multiples of PART_BYTES, because the session holds the rows of two requests
_MOST_FETCHED = 4096  # most rows of one fetch, and of one request to the service
_MOST_PREPARED = 16  # most readings that are prepared and not begun: a statement may have several
_MOST_BEGUN = 64  # most readings of a transaction that are not ended, for example those of statements that failed


class _Reading(NamedTuple):
    """A prepared reading: the statement that reads the rows, and the `request` to the service for each part.

    `place` has the relation, and in `exclude` its columns that are not read: where a text at fault may be.
    """

    role: str
    source: str
    statement: str
    path: str | None
    request: Json
    binary: bool
    version: Row
    place: Json
    shared: Json | None  # the request to read the relation, if the service may read it

    @property
    def service_names_rows(self) -> bool:
        """Whether the key columns are sent with the row, so that the service returns the keys as JSON."""
        return bool(self.request.get("keys"))

    @property
    def part_bytes(self) -> int:
        """The size of one request's rows."""
        wider = len(self.request.get("columns", ())) // _COLUMNS_PER_PART
        return service_connection.PART_BYTES * min(1 + wider, _MOST_PART_MULTIPLE)


class _Part(NamedTuple):
    """Rows of one request, with their keys as JSON, unless the service returns the keys.

    `first` is the number of the first row.
    """

    first: int
    keys: list[str] | None
    rows: list[bytes]


class _Begun(NamedTuple):
    """A reading that has not ended. `transaction` is the start time of its transaction, by which it is recognised."""

    transaction: str
    answers: Generator[Page, None, bool]
    connection: service_connection.ServiceConnection


def predict_table(plpy: Plpy, request: Json) -> Json:
    """Check a request for the predictions of a relation, and prepare a reading.

    Returns the number of the reading, which `pages` takes, and in `exports` whether the caller should export its
    snapshot for `pages`, because the service may read the relation under it.
    """
    model = read_model_name(request)
    version = find_version(plpy, model, read_integer(request, "version"))
    oid = read_integer(request, "relation")
    if oid is None:
        raise RequestError(
            "no relation is given", hint="Name one: select * from tensile_predict_table('model', 'table')."
        )
    kind = "table_proba" if request.get("with_probabilities") is True else "table"
    side = read_text(request, "side")
    check_side(side)
    if request.get("embedding") is True:
        kind = "table_embedding" if side is None else f"table_{side}_embedding"
    source, columns = named_relation(plpy, oid)
    features = describe_version(plpy, model, version, source, columns, side)["features"]
    computes = version["transform"] is not None
    key = key_columns(plpy, oid, source, columns, read_names(request, "keys"))
    # A version that computes features takes rows as JSON.
    binary = not computes and all(kinds_agree(columns[feature["name"]], feature["kind"]) for feature in features)
    service_request: Json = {"verb": "predict", "version": version["version_id"], "kind": kind}
    if version["measure_drift"] and side is None:  # a row of one side lacks the inputs of the other one
        service_request["measured"] = True
    names = raw_columns(version, [feature["name"] for feature in features])
    if binary:
        service_request["columns"] = [[name, type_of(columns[name])] for name in names]
        if 0 < len(key) <= _MOST_FIELDS - len(names) and all(columns[name]["base"] in INTEGERS for name in key):
            service_request["keys"] = [[name, columns[name]["base"]] for name in key]
        service_request["server_version"] = fetch(plpy, SERVER_VERSION)[0]["number"]
    shared = _shared_request(plpy, oid, columns, [*names, *key], service_request)
    number = next(_numbers)
    _prepared[number] = _Reading(
        role=fetch(plpy, SESSION)[0]["role"],
        source=source,
        statement=_statement(plpy, source, columns, key, names, service_request),
        path=read_text(request, "search_path"),
        request=service_request,
        binary=binary,
        version=version,
        place={"relation": oid, "exclude": [name for name in columns if name not in (*names, *key)]},
        shared=shared,
    )
    while len(_prepared) > _MOST_PREPARED:
        _prepared.popitem(last=False)
    return {"reading": number, "exports": shared is not None}


def place_of(number: int) -> Json:
    """Return the `place` of a prepared reading; without it, nothing."""
    return _prepared[number].place if number in _prepared else {}


def _shared_request(
    plpy: Plpy, oid: int, columns: Mapping[str, Row], used: Sequence[str], service_request: Json
) -> Json | None:
    """Return the request with which the service reads the relation, or None if the session must read it itself."""
    if "keys" not in service_request or not may_share(plpy, oid, columns, used):
        return None
    parts = fetch(plpy, RELATION_PARTS, oid)
    return None if not parts else {**service_request, "verb": "read", "oid": oid, **parts[0]}


def pages(plpy: Plpy, number: int, snapshot: str | None = None) -> Iterator[Page]:
    """Yield the answers for all rows of a prepared reading, which can be read once, by the role that prepared it.

    `snapshot` is one that this transaction has exported, under which the service can read the relation.
    """
    reading = _prepared.pop(number, None)
    if reading is None:
        hint = "Call tensile_predict_table, which prepares one."
        raise RefusalError(NOT_READY, f"there is no prepared reading {number} in this session", hint=hint)
    session = fetch(plpy, SESSION)[0]
    if reading.role != session["role"]:
        raise RefusalError(DENIED, f"reading {number} was prepared by another role", hint="Prepare your own.")
    _close_abandoned(plpy)
    connection, cursor = service_connection.ServiceConnection(), f"tensile_reading_{number}"
    answers = _answers(plpy, reading, cursor, connection, snapshot)
    _begin(number, _Begun(transaction=session["transaction"], answers=answers, connection=connection))
    try:
        complete = yield from answers  # None if another reading has closed `answers` (_begin)
    except GeneratorExit:
        _abandoned.append(cursor)
        raise
    finally:
        _begun.pop(number, None)
        connection.close()
    if not complete:
        message = f"more than {_MOST_BEGUN} readings are open in this transaction"
        raise RefusalError(TOO_MUCH, message, hint="Predict fewer relations in one statement.")


def _answers(
    plpy: Plpy,
    reading: _Reading,
    cursor: str,
    connection: service_connection.ServiceConnection,
    snapshot: str | None,
) -> Generator[Page, None, bool]:
    """Yield a page for each part, of rows that the service reads if it can, and return true."""
    with callers_path(plpy, reading.path):  # PostgreSQL checks the caller's rights, and locks the relation
        plpy.execute(f"declare {cursor} no scroll cursor for {reading.statement}")
    transaction = None if snapshot is None or reading.shared is None else transaction_of(plpy, snapshot)
    # shared_pages returns false only before its first page, so no row is answered twice.
    if transaction is None or not (
        yield from shared_pages(plpy, _request_of(reading, transaction, snapshot), connection)
    ):
        yield from _answered(plpy, reading, _parts(plpy, reading, cursor), connection)
    _close(plpy, cursor)
    return True


def _request_of(reading: _Reading, transaction: Row, snapshot: str | None) -> Json:
    """Return the request with which the service reads the relation for the present role and transaction."""
    return {**(reading.shared or {}), **transaction, "snapshot": snapshot}


def _answered(
    plpy: Plpy, reading: _Reading, parts: Iterator[_Part], connection: service_connection.ServiceConnection
) -> Iterator[Page]:
    """Yield a page for each part.

    The service computes a part while the session reads or returns another one.
    """
    part = next(parts, None)
    if part is not None:
        _send(plpy, reading, part, connection)
    while part is not None:
        following = next(parts, None)
        try:
            answer = service_connection.page_of(connection.receive(plpy))
        except service_connection.ServiceRefusalError as refusal:
            raise _refusal_of_row(refusal, part) from None
        if following is not None:
            _send(plpy, reading, following, connection)
        keys = answer["keys"] if part.keys is None else f"[{','.join(part.keys)}]"
        yield keys, answer["values"], answer["labels"], answer["probabilities"], answer["targets"], None  # no error
        part = following


def _send(plpy: Plpy, reading: _Reading, part: _Part, connection: service_connection.ServiceConnection) -> None:
    if reading.binary:
        request = json.dumps(reading.request | {"rows": [], "record_rows": len(part.rows)}).encode()
        connection.send(plpy, request, records=b"".join(part.rows))
    else:
        connection.send(plpy, json.dumps(reading.request).encode(), part.rows)


def _refusal_of_row(refusal: service_connection.ServiceRefusalError, part: _Part) -> RefusalError:
    if refusal.row is None:
        return refusal
    numbered = refusal.of_row(part.first + refusal.row)
    if part.keys is not None:
        numbered.detail = numbered.detail or f"The row's key is {part.keys[refusal.row]}."
    return numbered


def _begin(number: int, begun: _Begun) -> None:
    """Remember a reading, and free the rows and connections of readings of earlier transactions.

    If a statement fails, PL/Python does not close its generators, so their rows and connections stay. Without a
    reading of an earlier transaction, the oldest readings beyond the largest number are closed; `pages` then refuses
    to go on.
    """
    _begun[number] = begun
    ended = [other for other in _begun if _begun[other].transaction != begun.transaction]
    for other in ended or list(_begun)[: max(0, len(_begun) - _MOST_BEGUN)]:
        dropped = _begun.pop(other)
        dropped.answers.close()
        dropped.connection.close()


def _parts(plpy: Plpy, reading: _Reading, cursor: str) -> Iterator[_Part]:
    """Yield the rows in parts that fit into one request."""
    read = 0
    for records in _fetches(plpy, reading, cursor):
        keys = None if reading.service_names_rows else [record["key"] for record in records]
        rows = [record["encoded"] for record in records]
        if not reading.binary:
            rows = [row.encode() for row in rows]
        begin = 0
        sizes = list(map(len, rows))
        if keys is not None:
            sizes = [size_bytes + len(key) for size_bytes, key in zip(sizes, keys, strict=True)]
        for end in _ends(sizes, reading.part_bytes):
            part = _Part(first=read + begin + 1, keys=keys and keys[begin:end], rows=rows[begin:end])
            _check_size(reading, part)
            yield _computed(plpy, reading, part)
            begin = end
        read += len(rows)


def _computed(plpy: Plpy, reading: _Reading, part: _Part) -> _Part:
    """Return the part with the features that the version computes."""
    # None of the rows is null, because a relation has no null rows.
    rows = with_features(plpy, reading.version, part.rows, first=part.first)
    return _Part(first=part.first, keys=part.keys, rows=[row for row in rows if row is not None])


def _ends(sizes: list[int], part_bytes: int) -> Iterator[int]:
    """Yield the positions at which rows of these sizes are divided into parts; a part has a row or more."""
    begin = size_bytes = 0
    if sum(sizes) > part_bytes:
        for place, row_bytes in enumerate(sizes):
            if place > begin and size_bytes + row_bytes > part_bytes:
                yield place
                begin, size_bytes = place, 0
            size_bytes += row_bytes
    yield len(sizes)


def _check_size(reading: _Reading, part: _Part) -> None:
    # A row larger than part_bytes is a part of its own, and MOST_ROW_BYTES is larger than any part_bytes.
    if len(part.rows[0]) > service_connection.MOST_ROW_BYTES:
        raise RefusalError(
            TOO_MUCH,
            f"row {part.first} of {reading.source} has {len(part.rows[0])} bytes, "
            f"more than the {service_connection.MOST_ROW_BYTES} that a row may have",
            detail=f"The row's key is {part.keys[0]}." if part.keys else "",
            hint="Name a view whose arrays have fewer values.",
        )


def _fetches(plpy: Plpy, reading: _Reading, cursor: str) -> Iterator[list[Row]]:
    """Yield the rows of one fetch after another, few at first."""
    next_rows = _FIRST_ROWS
    while records := _fetched(plpy, reading, cursor, next_rows):
        largest_bytes = max(len(record["encoded"]) + len(record.get("key") or "") for record in records)
        next_rows = max(1, min(_MOST_FETCHED, 10 * next_rows, reading.part_bytes // largest_bytes))
        yield records


def _fetched(plpy: Plpy, reading: _Reading, cursor: str, rows: int) -> list[Row]:
    """Return the next rows. The relation's functions, if it is a view, run here with the caller's search_path."""
    with callers_path(plpy, reading.path):
        return list(plpy.execute(f"fetch {rows} from {cursor}"))


def _close_abandoned(plpy: Plpy) -> None:
    """Close the cursors of readings that were not read to their end, for example because of a LIMIT.

    `pages` cannot close them itself: GeneratorExit arrives while the executor shuts down, when no statement can run.
    The end of the transaction closes the cursors too.
    """
    if _abandoned:
        _close(plpy, *_abandoned)
        _abandoned.clear()


def _close(plpy: Plpy, *cursors: str) -> None:
    """Close those of these cursors that are open. The end of their transaction may have closed them already."""
    for row in fetch(plpy, CURSORS, ",".join(cursors)):
        plpy.execute(f"close {row['name']}")


def _statement(
    plpy: Plpy,
    source: str,
    columns: Mapping[str, Row],
    key: Sequence[str],
    names: Sequence[str],
    service_request: Json,
) -> str:
    """Return a query for each row's encoded values and its key. It runs with the caller's search_path.

    The key is JSON or, if the request has `keys`, further fields of the record.
    """
    keys = ", ".join(f"t.{plpy.quote_ident(name)}" for name in key)
    values = ", ".join(f"t.{plpy.quote_ident(name)}" for name in names)
    if "keys" in service_request:
        return f"select pg_catalog.record_send(row({values}, {keys})) as encoded from {source} as t"
    if not key:
        key_json = "'{}'"
    elif is_plain_key(columns, key):
        pairs = ", ".join(f"{plpy.quote_literal(name)}, t.{plpy.quote_ident(name)}" for name in key)
        key_json = f"pg_catalog.json_build_object({pairs})::pg_catalog.text"
    else:
        key_json = f"(select tensile.row_json(k.*)::pg_catalog.text from (select {keys}) as k)"
    if "columns" in service_request:
        encoded = f"pg_catalog.record_send(row({values}))"
    else:
        encoded = f"(select tensile.row_json(f.*)::pg_catalog.text from (select {values}) as f)"
    return f"select {key_json} as key, {encoded} as encoded from {source} as t"


_numbers = itertools.count(1)
_prepared: OrderedDict[int, _Reading] = OrderedDict()
_begun: OrderedDict[int, _Begun] = OrderedDict()
_abandoned: list[str] = []  # names of cursors

_MOST_FIELDS = 1664  # PostgreSQL allows no more in a row

# A cursor of PL/Python (plpy.cursor) is pinned: with the extended query protocol a statement with a LIMIT could not
# be committed. So the readings declare cursors of their own.
CURSORS = """
select c.name from pg_catalog.pg_cursors as c
 where c.name = any (pg_catalog.string_to_array($1::text, ','))"""
SESSION = "select current_user::text as role, pg_catalog.now()::text as transaction"
SERVER_VERSION = "select pg_catalog.current_setting('server_version_num')::int4 as number"
RELATION_PARTS = """
select n.nspname as schema, c.relname as relation, tensile.current_role_oid()::int8 as role
  from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 where c.oid = $1::oid"""
