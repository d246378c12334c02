"""Tables of series in memory, as a training reads them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.storage.columns import Column, ColumnData, ColumnKind, CopyEncoding, TableData

DAY_S = 86_400.0
_TYPES = {ColumnKind.DATE: "date", ColumnKind.TIME: "timestamp with time zone", ColumnKind.INTEGER: "integer"}


def column(kind: ColumnKind, values: Sequence[Any]) -> ColumnData:
    """Return a column; None is NULL."""
    missing = np.array([value is None for value in values])
    if kind is ColumnKind.TEXT:
        return ColumnData(kind=kind, values=np.array(values, object), missing=missing)
    dtype = np.int64 if kind is ColumnKind.INTEGER else np.float64
    return ColumnData(
        kind=kind, values=np.array([0 if value is None else value for value in values], dtype), missing=missing
    )


def series_table(columns: Mapping[str, ColumnData]) -> TableData:
    """Return the columns as a table."""
    rows = len(next(iter(columns.values())).missing)
    described = tuple(
        Column(name=name, type=_TYPES.get(data.kind, "text"), wire=CopyEncoding(kind=data.kind, item=">f8"))
        for name, data in columns.items()
    )
    return TableData(
        columns=dict(columns), described=described, rows=rows, row_hash=np.arange(rows, dtype=np.uint64), digest="d"
    )


def daily(series: Mapping[str, Sequence[float | None]]) -> TableData:
    """Return series of days: columns name, day and sold."""
    names = [name for name, values in series.items() for _ in values]
    days = [place * DAY_S for values in series.values() for place in range(len(values))]
    sold = [value for values in series.values() for value in values]
    return series_table(
        {
            "name": column(ColumnKind.TEXT, names),
            "day": column(ColumnKind.DATE, days),
            "sold": column(ColumnKind.FLOAT, sold),
        }
    )


def forecast_spec(*, target: str = "sold", architecture: str = "auto", **forecast: Any) -> JobSpec:
    """Return the specification of a forecast."""
    return JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="t"),
        target=target,
        task=Task.FORECAST,
        architecture={"type": architecture},
        hyperparams={"epochs": 2, "batch_size": 32},
        forecast={"time": "day", "horizon": 3} | forecast,
    )
