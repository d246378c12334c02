"""Lists for the pages: the listings of the command line, with filters, sort keys and pages from an address."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row
from sqlalchemy.dialects import postgresql

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.sqlalchemy.catalog_listings import (
    JOBS,
    MODELS,
    QUEUE,
    SEARCHES,
    TRIALS,
    USAGE,
    WORKERS,
)
from indb_tensile.catalog.sqlalchemy.listing import Listing, ListingRequest, listing_statement
from indb_tensile.errors import MissingError, RequestError
from indb_tensile.job import JobState
from indb_tensile.monitor.live_figures import plain

LISTINGS = {
    "jobs": JOBS,
    "queue": QUEUE,
    "models": MODELS,
    "searches": SEARCHES,
    "trials": TRIALS,
    "usage": USAGE,
    "workers": WORKERS,
}
_MOST_ROWS = 200
_DEFAULT_ROWS = 50
_MOST_OFFSET = 10_000_000
_DIALECT = postgresql.dialect(paramstyle="pyformat")  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingQuery:
    """One page of a listing, as hashable values."""

    name: str
    filters: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    sort: tuple[str, ...] = ()
    limit: int = _DEFAULT_ROWS
    offset: int = 0


def request_of(name: str, parameters: Iterable[tuple[str, str]]) -> ListingQuery:
    """Return the query of an address. Raises MissingError and RequestError that name what is wrong."""
    listing = LISTINGS.get(name)
    if listing is None:
        raise MissingError(f"there is no list {name!r}", hint=f"Valid are {', '.join(LISTINGS)}.")
    filters: dict[str, list[Any]] = {}
    sort: list[str] = []
    limit, offset = _DEFAULT_ROWS, 0
    for key, text in parameters:
        match key:
            case "sort":
                sort.append(text)
            case "limit":
                limit = _count(text, "limit", _MOST_ROWS)
            case "offset":
                offset = _count(text, "offset", _MOST_OFFSET)
            case _:
                filters.setdefault(key, []).append(_filter_value(listing, key, text))
    listed = tuple((key, tuple(values)) for key, values in sorted(filters.items()))
    return ListingQuery(name=name, filters=listed, sort=tuple(sort), limit=limit, offset=offset)


def read(connection: Connection, wanted: ListingQuery) -> dict[str, Any]:
    """Return the rows of a page, and whether more follow. Raises RequestError for an unknown sort key."""
    request = ListingRequest(filters=dict(wanted.filters), sort=wanted.sort, limit=wanted.limit, offset=wanted.offset)
    compiled = listing_statement(LISTINGS[wanted.name], request).compile(
        dialect=_DIALECT, compile_kwargs={"render_postcompile": True}
    )
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(str(compiled), compiled.params)
        rows = [{key: plain(value) for key, value in row.items()} for row in cursor]
    return {"rows": rows[: wanted.limit], "more": len(rows) > wanted.limit}


def _filter_value(listing: Listing, key: str, text: str) -> Any:
    if key == "state" and "state" in listing.filters:
        if text not in {state.value for state in JobState}:
            raise RequestError(
                f"state is {text!r}", hint=f"Valid are {', '.join(state.value for state in JobState)}."
            )
        return JobState(text)
    if key in ("job", "search") and key in listing.filters:
        return _count(text, key, 2**63 - 1)
    if key in listing.names:
        if "\0" in text:
            raise RequestError(f"{key} has a zero byte, which no name in PostgreSQL has")
        return text
    valid = sorted({*listing.names, *({"state", "job", "search"} & set(listing.filters))})
    raise RequestError(f"{listing.name} cannot be filtered by {key!r}", hint=f"Valid are {', '.join(valid)}.")


def _count(text: str, name: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > most:
        raise RequestError(f"{name} is {text[:40]!r}, not a whole number up to {most}")
    return int(text)
