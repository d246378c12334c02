"""A listing's statement is put together from filters, sort keys and pages, and never from the text of a user."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, Text, create_engine, insert

from indb_tensile.catalog.sqlalchemy import catalog_listings, catalog_views
from indb_tensile.catalog.sqlalchemy.listing import (
    Listing,
    ListingPage,
    ListingRequest,
    listing_statement,
    names_in_use,
    read_listing,
)
from indb_tensile.errors import RequestError

LISTINGS = {name: value for name, value in vars(catalog_listings).items() if isinstance(value, Listing)}
DIALECT = create_engine("postgresql+psycopg://").dialect

# A table with equal and missing values stands for the catalog: SQLite sorts and pages as PostgreSQL does.
FRUITS = Table("fruits", MetaData(), Column("number", BigInteger), Column("name", Text), Column("weight", BigInteger))
FRUIT_LISTING = Listing(
    name="fruits",
    source=FRUITS,
    columns={"number": FRUITS.c.number, "name": FRUITS.c.name, "weight": FRUITS.c.weight},
    names={"name": FRUITS.c.name},
    filters={},
    order=(FRUITS.c.number.desc(),),
)


@pytest.fixture
def fruits() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    FRUITS.metadata.create_all(engine)
    rows = [(1, "pear", 7), (2, "fig", 2), (3, "pear", None), (4, "apple", 7), (5, None, 3)]
    with engine.begin() as connection:
        connection.execute(insert(FRUITS).values(rows))
    yield engine
    engine.dispose()


def numbers(engine: Engine, **request: object) -> list[int]:
    page = read_listing(engine, FRUIT_LISTING, ListingRequest(**request))  # type: ignore[arg-type]
    return [row["number"] for row in page.rows]


def test_rows_without_sort_keys_come_in_the_order_of_the_listing(fruits: Engine) -> None:
    assert numbers(fruits) == [5, 4, 3, 2, 1]


def test_rows_without_a_value_come_last_and_the_order_of_the_listing_breaks_ties(
    fruits: Engine,
) -> None:
    assert numbers(fruits, sort=("weight",)) == [2, 5, 4, 1, 3]
    assert numbers(fruits, sort=("-weight",)) == [4, 1, 5, 2, 3]
    assert numbers(fruits, sort=("-weight", "number")) == [1, 4, 5, 2, 3]


def test_a_filter_admits_rows_with_one_of_its_values_and_an_empty_filter_admits_all(fruits: Engine) -> None:
    assert numbers(fruits, filters={"name": ("pear", "fig")}) == [3, 2, 1]
    assert numbers(fruits, filters={"name": ()}) == numbers(fruits, filters={"name": None}) == [5, 4, 3, 2, 1]


def test_a_filter_by_name_that_admits_no_row_is_reported_with_the_names_of_rows(fruits: Engine) -> None:
    def report(most: int, *names: str) -> dict[str, list[str]]:
        return names_in_use(fruits, FRUIT_LISTING, ListingRequest(filters={"name": names}), most)

    assert report(9, "plum", "kiwi") == {"name": ["apple", "fig", "pear"]}
    assert report(2, "plum") == {"name": ["apple", "fig"]}
    assert report(9, "plum", "fig") == report(9) == {}


@given(st.integers(1, 6), st.lists(st.sampled_from(["name", "-name", "weight", "-weight"]), max_size=2))
def test_pages_neither_repeat_nor_omit_a_row(limit: int, sort: list[str]) -> None:
    engine = create_engine("sqlite://")
    FRUITS.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(FRUITS), [{"number": n, "name": "ab"[n % 2], "weight": n // 4} for n in range(9)])
    pages: list[ListingPage] = []
    while not pages or pages[-1].more:
        request = ListingRequest(sort=tuple(sort), limit=limit, offset=limit * len(pages))
        pages.append(read_listing(engine, FRUIT_LISTING, request))
    whole = read_listing(engine, FRUIT_LISTING, ListingRequest(sort=tuple(sort)))
    assert [row for page in pages for row in page.rows] == whole.rows
    assert len(whole.rows) == 9
    assert not whole.more
    engine.dispose()


@pytest.mark.parametrize("name", ["", "-", "colour", "--name", "name desc", "name; drop table fruits", "NAME"])
def test_an_unknown_sort_key_is_refused_with_the_names_of_the_columns(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        listing_statement(FRUIT_LISTING, ListingRequest(sort=(name,)))
    assert caught.value.message == f'fruits cannot be sorted by "{name}": there is no such column'
    assert "number, name, weight" in caught.value.hint


@pytest.mark.parametrize("listing", LISTINGS)
@given(value=st.text())
def test_the_values_of_filters_are_parameters_whatever_they_contain(listing: str, value: str) -> None:
    names = list(LISTINGS[listing].names)
    plain = listing_statement(LISTINGS[listing], ListingRequest(filters=dict.fromkeys(names, ("x",))))
    statement = listing_statement(LISTINGS[listing], ListingRequest(filters=dict.fromkeys(names, (value,))))
    compiled = statement.compile(dialect=DIALECT)
    assert str(compiled) == str(plain.compile(dialect=DIALECT))
    assert [parameter for parameter in compiled.params.values() if parameter == [value]] == [[value]] * len(names)


@pytest.mark.parametrize("listing", LISTINGS)
def test_every_column_of_a_listing_can_be_sorted_by_and_every_filter_has_its_condition(listing: str) -> None:
    """Relations are named with their schema: a listing's own tables are those of the metadata."""
    values = {"since": datetime(2026, 1, 2), "until": timedelta(hours=2), "deployed": True, "alive": False}
    request = ListingRequest(
        filters={name: values.get(name, (1,)) for name in LISTINGS[listing].filters},
        sort=tuple(f"-{name}" for name in LISTINGS[listing].columns),
    )
    text = str(listing_statement(LISTINGS[listing], request).compile(dialect=DIALECT))
    assert "tensile." in text
    assert text.count("DESC NULLS LAST") == len(LISTINGS[listing].columns)


def test_listings_that_show_a_view_show_all_of_its_columns_under_their_names() -> None:
    shown = {
        "QUEUE": catalog_views.stat_queue,
        "MODELS": catalog_views.model_list,
        "WORKERS": catalog_views.stat_workers,
        "DEVICES": catalog_views.stat_device,
    }
    for name, view in shown.items():
        assert list(LISTINGS[name].columns) == [column.name for column in view.columns]
