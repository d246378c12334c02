"""Latency predictors by kind of device, and what they learn from: a survey's operators, and those that jobs ran."""

from collections.abc import Mapping
from dataclasses import dataclass

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query

MOST_HISTORY = 20_000  # the operators measured last: training on more takes minutes and tells nothing new


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPredictor:
    """One kind of device's predictor: `history` of the `samples` were jobs' operators, the others the `survey`'s."""

    model: bytes
    survey: bytes
    samples: int
    history: int


def describe(connection: Connection, descriptions: Mapping[str, str]) -> None:
    """Remember what operators are, by signature; known ones are left as they are."""
    if descriptions:
        signatures = sorted(descriptions)
        values = {"signatures": signatures, "descriptions": [descriptions[key] for key in signatures]}
        connection.execute(query("describe_operators"), values)


def count_history(connection: Connection, device_kind: str) -> int:
    """How many described operators have been measured on this kind of device."""
    row = connection.execute(query("count_history"), {"device_kind": device_kind}).fetchone()
    return int(row[0]) if row is not None else 0


def history(connection: Connection, device_kind: str, most: int = MOST_HISTORY) -> list[tuple[str, int]]:
    """Description and latency in ns of those measured last."""
    rows = connection.execute(query("history"), {"device_kind": device_kind, "most": most})
    return [(description, latency_ns) for description, latency_ns in rows]


def load_predictor(connection: Connection, device_kind: str) -> StoredPredictor | None:
    """The predictor of this kind of device; None where none was trained yet."""
    row = connection.execute(query("load_predictor"), {"device_kind": device_kind}).fetchone()
    if row is None:
        return None
    model, survey, samples, history_size = row
    return StoredPredictor(model=bytes(model), survey=bytes(survey), samples=samples, history=history_size)


def save_predictor(connection: Connection, device_kind: str, stored: StoredPredictor) -> None:
    """Take the place of the predictor of this kind of device."""
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
