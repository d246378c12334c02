"""Reads sample data sets in pages. The bridge function writes the rows to the table with its caller's rights."""

from itertools import islice
from typing import Any

from indb_tensile.errors import RequestError
from indb_tensile.learning.relation import datasets

from .requests import Dataset

_MAX_ROWS = 10_000  # most rows of one page, which bounds the size of an answer


def dataset(request: Dataset) -> dict[str, Any]:
    """Return the columns with their SQL types, and the rows from `offset` on; past the end there are none.

    Raises MissingError for an unknown data set, RequestError for an impossible page.
    """
    if request.offset < 0 or not 1 <= request.limit <= _MAX_ROWS:
        raise RequestError(
            f"a page of {request.limit} rows from row {request.offset} on cannot be read",
            hint=f"Give an offset of 0 or more, and a limit from 1 to {_MAX_ROWS}.",
        )
    columns = datasets.columns(request.name)
    rows = list(datasets.rows(request.name))
    return {
        "columns": columns,
        "primary_key": columns[0][0],
        "target": datasets.target(request.name),
        "rows": list(islice(rows, request.offset, request.offset + request.limit)),
        "total": len(rows),
    }
