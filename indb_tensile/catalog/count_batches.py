"""Stores what services have counted, each batch once, however often a service sends it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.drift import InputAmounts, add_inputs
from indb_tensile.catalog.queries import query
from indb_tensile.catalog.usage import add_totals


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBatch:
    """What a service has counted since its last batch.

    `source` is the service, `process` its start, and `number` counts its batches from 1: together they identify the
    batch. A key of `totals` is the name and the label of a counter.
    """

    source: str
    process: UUID
    number: int
    totals: Mapping[tuple[str, str], float]
    inputs: Sequence[InputAmounts] = ()


def store_batch(connection: Connection, batch: CountBatch) -> None:
    """Add the counts of a batch, unless it is stored already. Safe to repeat, also if a commit was not confirmed."""
    keys = {"source": batch.source, "process": batch.process, "number": batch.number}
    with connection.transaction():
        if connection.execute(query("note_count_batch"), keys).fetchone() is None:
            return
        add_inputs(connection, batch.inputs)
        add_totals(connection, batch.totals)  # last, because all services add to the same rows
