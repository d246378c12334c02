"""Sample data sets, page by page: the bridge writes the rows as its caller."""

from itertools import islice
from typing import Any

from indb_tensile.errors import RequestError
from indb_tensile.learning import datasets

from .requests import Dataset

_MOST_ROWS = 10_000  # of one page: bounds the answer


def dataset(request: Dataset) -> dict[str, Any]:
    """Columns with their SQL types, and the rows from `offset` on; past the end there are none.

    Raises MissingError for a name that is not known, RequestError for an impossible page.
    """
    if request.offset < 0 or not 1 <= request.limit <= _MOST_ROWS:
        raise RequestError(
            f"a page of {request.limit} rows from row {request.offset} on cannot be given",
            hint=f"offset is 0 or more, limit is from 1 to {_MOST_ROWS}",
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
