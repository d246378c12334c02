"""Check that the caller's search_path is set for one block and restored after it."""

import pytest

from indb_tensile.sql_api.spi import CURRENT_PATH, SET_PATH, callers_path
from tests.sql_api.fakes import plpy_with

PINNED = (CURRENT_PATH, ()), (SET_PATH, ("own, public",))
RESTORED = (SET_PATH, ("pg_catalog, pg_temp",))


def test_callers_path_is_set_before_the_block_and_restored_after_it() -> None:
    plpy = plpy_with()

    with callers_path(plpy, "own, public"):
        plpy.execute("select 2")

    assert plpy.executed == [*PINNED, ("select 2", ()), RESTORED]


def test_error_in_the_block_restores_the_path_and_is_raised() -> None:
    plpy = plpy_with()

    with pytest.raises(plpy.SPIError, match="no such table"), callers_path(plpy, "own, public"):
        raise plpy.SPIError("no such table")

    assert plpy.executed == [*PINNED, RESTORED]


def test_no_path_is_set_without_a_callers_path() -> None:
    plpy = plpy_with()

    with callers_path(plpy, None):
        plpy.execute("select 2")

    assert plpy.executed == [("select 2", ())]
