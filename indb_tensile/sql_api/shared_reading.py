"""Lets the service read a table under a snapshot that the session exports, while the session returns answers.

A session spends most of the time of its predictions on encoding and fetching rows. The service may read only what the
session would read itself, so this is for plain tables: no view, no row-level security, no temporary or foreign table,
and no type with a send function of a user's. As for a training, the role `tensile_reader` must be able to read it.
The transaction must not have written the table, because its own rows are in no exported snapshot. It must not be
serializable, because PostgreSQL could not track the reads of the other session. PostgreSQL exports no snapshot in a
subtransaction, and prepares no transaction that has exported one.

The session declares its own cursor all the same: PostgreSQL then checks the caller's rights, and locks the table
until the transaction ends.
"""

import ctypes
import json
from collections.abc import Generator, Mapping, Sequence

from ..request.copyable_relation import FAMILY, GRANTS, counting, missing_grants, reasons
from ..request.json_text import json_text
from . import service_connection
from .spi import Json, Plpy, Row, fetch

_READER = "tensile_reader"
_LEAST_BYTES = 4 << 20  # for a smaller table, connecting the reader takes longer than it saves
_OLDEST_OWN_OID = 16384  # the tables of a lower oid are PostgreSQL's, whose locks end before their transaction

Page = tuple[str | None, ...]  # keys, values, labels, probabilities, targets and an error, as texts for SQL


def may_share(plpy: Plpy, oid: int, columns: Mapping[str, Row], used: Sequence[str]) -> bool:
    """Return whether the service may read these columns of the relation in this session's stead."""
    family = fetch(plpy, FAMILY, oid)
    oids = [row["oid"] for row in family if row["place"] != "ancestor"]
    facts = fetch(plpy, CIRCUMSTANCES, ",".join(map(str, oids)), _LEAST_BYTES)[0]
    if oid < _OLDEST_OWN_OID or not facts["shareable"] or _in_subtransaction():
        return False
    if facts["writes"] and any(columns[name]["enumerated"] for name in used):  # it may have renamed a label
        return False
    if counting(reasons(family, columns.values()), used, keyed=False):
        return False
    grants = fetch(plpy, GRANTS, oid, _READER, json_text(used))
    return not missing_grants(grants, _READER, plpy.quote_ident)


def transaction_of(plpy: Plpy, snapshot: str) -> Row | None:
    """Return the virtual id and the process of this session's transaction, or None if the snapshot is not its own.

    PostgreSQL names an exported snapshot by both numbers of the virtual id, in hexadecimal.
    """
    transaction = fetch(plpy, TRANSACTION)[0]
    parts = snapshot.split("-")
    try:
        virtual_id = "/".join(str(int(part, 16)) for part in parts[:2])
    except ValueError:
        return None
    return transaction if len(parts) == 3 and virtual_id == transaction["transaction"] else None


def shared_pages(
    plpy: Plpy, request: Json, connection: service_connection.ServiceConnection
) -> Generator[Page, None, bool]:
    """Yield the answers page by page, and return true; or return false, without a page, if the service cannot read.

    The service refuses only the first request: once the session has rows, a fault of the service is an error.

    The service computes a page while the session returns the one before.
    """
    after = 0
    _ask(plpy, request, connection, after)
    while True:
        try:
            answer = service_connection.page_of(connection.receive(plpy))
        except service_connection.ServiceRefusalError as refusal:
            raise (refusal if refusal.row is None else refusal.of_row(after + refusal.row + 1)) from None
        if "refused" in answer:
            return False
        if not answer["rows"]:
            return True
        after += answer["rows"]
        _ask(plpy, request, connection, after)
        yield answer["keys"], answer["values"], answer["labels"], answer["probabilities"], answer["targets"], None


def _ask(plpy: Plpy, request: Json, connection: service_connection.ServiceConnection, after: int) -> None:
    connection.send(plpy, json.dumps(request | {"after": after}).encode())


def _in_subtransaction() -> bool:
    """Return whether the session is in a subtransaction, below a savepoint or a block that catches exceptions.

    There is no SQL function for this. If the server's own function is not found, the answer is yes.
    """
    try:
        level: int = ctypes.CDLL(None).GetCurrentTransactionNestLevel()
    except (AttributeError, OSError):
        return True
    return level > 1


# A transaction that has written a table holds a lock of a stronger mode than those of readers until it ends.
CIRCUMSTANCES = """
select pg_catalog.current_setting('transaction_isolation') <> 'serializable'
       and pg_catalog.current_setting('max_prepared_transactions') = '0'
       and (select coalesce(sum(pg_catalog.pg_table_size(t.oid)), 0) >= $2::int8
              from pg_catalog.unnest(pg_catalog.string_to_array($1::text, ',')::oid[]) as t (oid))
       and not exists (select from pg_catalog.pg_locks as l
                        where l.pid = pg_catalog.pg_backend_pid() and l.locktype = 'relation'
                          and l.relation = any (pg_catalog.string_to_array($1::text, ',')::oid[])
                          and l.mode not in ('AccessShareLock', 'RowShareLock')) as shareable,
       pg_catalog.pg_current_xact_id_if_assigned() is not null as writes"""
TRANSACTION = """
select l.virtualxid as transaction, l.pid
  from pg_catalog.pg_locks as l
 where l.pid = pg_catalog.pg_backend_pid() and l.locktype = 'virtualxid' and l.granted"""
