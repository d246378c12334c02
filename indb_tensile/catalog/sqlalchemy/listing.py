"""Puts the statement of a listing together from filters, sort keys and a page, and reads its rows.

The values of filters are always parameters of the statement. The names of sort keys are looked up among the columns
of the listing. No text of a user becomes SQL.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Engine, FromClause, Select, and_, func, literal, select

from indb_tensile.catalog.sqlalchemy.engine import transaction
from indb_tensile.errors import RequestError

Condition = Callable[[Any], ColumnElement[bool]]
_MOST_ROWS = 2**62  # no table has as many rows, and PostgreSQL counts them in a bigint


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One kind of listing: where its rows come from, its columns, its filters and its order.

    `columns` maps the labels that users see to expressions, and users sort by the same labels. `names` are the
    filters by name, each with the column that it compares. `filters` are all others, each with its condition. `order`
    is the order without sort keys, and of rows that are equal in all sort keys. It must be total, so that the pages
    of a listing neither repeat nor omit a row.
    """

    name: str
    source: FromClause
    columns: Mapping[str, ColumnElement[Any]]
    names: Mapping[str, ColumnElement[Any]]
    filters: Mapping[str, Condition]
    order: Sequence[ColumnElement[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingRequest:
    """What a user wants to see of a listing.

    A row must pass all filters, and of a filter by name it must have one of the names. A filter that is None, or has
    no names, admits all rows. `sort` has labels of columns; a leading `-` sorts from high to low. `limit` None stands
    for all rows after the first `offset`.
    """

    filters: Mapping[str, Any] = field(default_factory=dict)
    sort: Sequence[str] = ()
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingPage:
    """The rows of a listing that a request asks for. `more` tells whether further rows follow them."""

    rows: list[dict[str, Any]]
    more: bool


def read_listing(engine: Engine, listing: Listing, request: ListingRequest) -> ListingPage:
    """Read one page of a listing. Raises RequestError for an unknown sort key, and psycopg's errors."""
    statement = listing_statement(listing, request)
    with transaction(engine) as connection:
        rows = [dict(row) for row in connection.execute(statement).mappings()]
    more = request.limit is not None and len(rows) > request.limit
    return ListingPage(rows=rows[: request.limit] if more else rows, more=more)


def names_in_use(engine: Engine, listing: Listing, request: ListingRequest, most: int) -> dict[str, list[str]]:
    """Return the filters by name that admit no row, each with up to `most` names that rows have, in their order.

    The rows are those of the relation that has the names, before all other filters.
    """
    in_use: dict[str, list[str]] = {}
    with transaction(engine) as connection:
        for name, column in listing.names.items():
            values = request.filters.get(name) or ()
            rows = select(column.label("name"))
            if values and connection.execute(rows.where(column.in_(values)).limit(1)).first() is None:
                names = rows.where(column.is_not(None)).distinct().order_by("name").limit(most)
                in_use[name] = [str(value) for value in connection.scalars(names)]
    return in_use


def listing_statement(listing: Listing, request: ListingRequest) -> Select[Any]:
    """Return the statement for one page and, with a limit, one row more, which tells whether rows follow the page."""
    statement = select(*(column.label(name) for name, column in listing.columns.items()))
    statement = statement.select_from(listing.source).where(and_(True, *_conditions(listing, request.filters)))
    statement = statement.order_by(*_order(listing, request.sort))
    if request.limit is not None:
        statement = statement.limit(_row_count(request.limit + 1))
    return statement.offset(_row_count(request.offset)) if request.offset else statement


def is_any_of(column: ColumnElement[Any]) -> Condition:
    """Return the condition that the column has one of the values of a sequence."""
    return column.in_


def is_equal(column: ColumnElement[Any]) -> Condition:
    """Return the condition that the column has the value."""
    return lambda value: column == value


def is_since(column: ColumnElement[Any]) -> Condition:
    """Return the condition that the time is not before a moment (see `_moment`)."""
    return lambda value: column >= _moment(value)


def is_until(column: ColumnElement[Any]) -> Condition:
    """Return the condition that the time is before a moment (see `_moment`)."""
    return lambda value: column < _moment(value)


def _moment(value: datetime | timedelta) -> Any:
    """Return the expression for a moment. A timedelta is an age; a datetime without a zone is in the session's."""
    return func.now() - value if isinstance(value, timedelta) else value


def _conditions(listing: Listing, filters: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    conditions = {name: is_any_of(column) for name, column in listing.names.items()} | dict(listing.filters)
    return [conditions[name](value) for name, value in filters.items() if value is not None and value != ()]


def _order(listing: Listing, sort: Sequence[str]) -> list[ColumnElement[Any]]:
    return [*(_sort_key(listing, name) for name in sort), *listing.order]


def _sort_key(listing: Listing, name: str) -> ColumnElement[Any]:
    """Return the order by a column. Rows without a value come last in both directions."""
    column = listing.columns.get(name.removeprefix("-"))
    if column is None:
        raise RequestError(
            f'{listing.name} cannot be sorted by "{name}": there is no such column',
            hint=f"Sort by one or more of {', '.join(listing.columns)}. A minus before the name, as in "
            f"-{next(iter(listing.columns))}, sorts from high to low.",
        )
    return (column.desc() if name.startswith("-") else column.asc()).nulls_last()


def _row_count(count: int) -> ColumnElement[int]:
    return literal(min(count, _MOST_ROWS), BigInteger)
