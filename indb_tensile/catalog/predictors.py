"""Stores latency predictors by kind of device, and reads their training data: the measured operators of jobs."""

from collections.abc import Mapping
from dataclasses import dataclass

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query

MOST_HISTORY = 20_000  # the operators measured last: training on more takes minutes and improves nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPredictor:
    """The predictor of one kind of device, trained on `samples` operators.

    `history` of them ran in jobs. The others come from the `survey`, which measured operators before any job ran.
    """

    model: bytes
    survey: bytes
    samples: int
    history: int


def describe(connection: Connection, descriptions: Mapping[str, str]) -> None:
    """Store descriptions of operators by signature. Stored descriptions do not change."""
    if descriptions:
        signatures = sorted(descriptions)
        values = {"signatures": signatures, "descriptions": [descriptions[key] for key in signatures]}
        connection.execute(query("describe_operators"), values)


def count_history(connection: Connection, device_kind: str) -> int:
    """Count the operators that have a description and were measured on this kind of device."""
    row = connection.execute(query("count_history"), {"device_kind": device_kind}).fetchone()
    return int(row[0]) if row is not None else 0


def history(connection: Connection, device_kind: str, most: int = MOST_HISTORY) -> list[tuple[str, int]]:
    """Return description and latency in ns of the `most` operators that were measured last, the latest first."""
    rows = connection.execute(query("history"), {"device_kind": device_kind, "most": most})
    return [(description, latency_ns) for description, latency_ns in rows]


def load_predictor(connection: Connection, device_kind: str) -> StoredPredictor | None:
    """Load the predictor of this kind of device. Returns None if none was trained yet."""
    row = connection.execute(query("load_predictor"), {"device_kind": device_kind}).fetchone()
    if row is None:
        return None
    model, survey, samples, history_size = row
    return StoredPredictor(model=bytes(model), survey=bytes(survey), samples=samples, history=history_size)


def save_predictor(connection: Connection, device_kind: str, stored: StoredPredictor) -> None:
    """Store the predictor of this kind of device, in place of the previous one."""
    connection.execute(
        query("save_predictor"),
        {
            "device_kind": device_kind,
            "model": stored.model,
            "survey": stored.survey,
            "samples": stored.samples,
            "history": stored.history,
        },
    )
