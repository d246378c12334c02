"""Loads the bins of a version's inputs, and adds counts of predicted rows: what `tensile.stat_drift` compares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.job import ModelVersionId


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAmounts:
    """How many rows a version has predicted, and how many of them are in each bin of its inputs."""

    version: ModelVersionId
    rows: int
    counts: Sequence[int]


def load_bins(connection: Connection, version: ModelVersionId) -> Mapping[str, Any] | None:
    """Return the stored figure with the bins of a version's inputs, or None if it has none."""
    row = connection.execute(query("input_bins"), {"version": version}).fetchone()
    return None if row is None else dict(row[0])


def load_measured_bins(connection: Connection, version: ModelVersionId) -> Mapping[str, Any] | None:
    """Return what `load_bins` does, or None if the drift of the version's model is not measured."""
    row = connection.execute(query("measured_input_bins"), {"version": version}).fetchone()
    return None if row is None else dict(row[0])


def add_inputs(connection: Connection, amounts: Sequence[InputAmounts]) -> None:
    """Add to the counts of the present day. Dropped versions are left out.

    The rows are locked in the order of the versions, so that two services cannot deadlock.
    """
    for own in sorted(amounts, key=lambda each: each.version):
        values = {"version": own.version, "rows": own.rows, "counts": list(own.counts)}
        connection.execute(query("add_predicted_inputs"), values)
