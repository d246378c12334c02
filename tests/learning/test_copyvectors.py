"""The types of pgvector are read by their wire format, recorded here, if a superuser owns their extension."""

import psycopg
import pytest

from indb_tensile.errors import DataError, RequestError
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import ColumnKind
from tests.conftest import Database
from tests.learning.relations import read_all

pytestmark = pytest.mark.postgres

# Sent by pgvector for '[1,-2,0.5]': the number of elements, an unused word, and the elements.
VECTOR = "00030000" + "3f800000" + "c0000000" + "3f000000"
HALFVEC = "00030000" + "3c00" + "c000" + "3800"
# The types have the functions of bytea, so a value is the bytes that its type sends.
TYPES = """
create schema v;
create type v.{name};
create function v.{name}_in(cstring) returns v.{name} language internal immutable strict as 'byteain';
create function v.{name}_out(v.{name}) returns cstring language internal immutable strict as 'byteaout';
create function v.{name}_send(v.{name}) returns bytea language internal immutable strict as 'byteasend';
create type v.{name} (input = v.{name}_in, output = v.{name}_out, send = v.{name}_send, internallength = variable);
grant usage on schema v to public;
"""
IN_EXTENSION = """
alter extension plpgsql add type v.{name};
alter extension plpgsql add function v.{name}_send(v.{name});
"""


def _create(connection: psycopg.Connection, name: str, values: tuple[str, ...]) -> None:
    connection.execute(TYPES.format(name=name).encode())
    connection.execute(f"create table t (id int primary key, e v.{name})".encode())
    for row, value in enumerate(values):
        connection.execute(f"insert into t values ({row}, {value})".encode())


@pytest.mark.parametrize(("name", "wire"), [("vector", VECTOR), ("halfvec", HALFVEC)])
def test_a_vector_is_read_as_an_array_by_its_wire_format(database: Database, name: str, wire: str) -> None:
    with database.connect() as connection:
        _create(connection, name, (f"'\\x{wire}'", "null", f"'\\x{wire}'"))
        with pytest.raises(RequestError, match="cannot learn from column"):  # the type is any user's
            read_all(database, "t")
        connection.execute(IN_EXTENSION.format(name=name).encode())
        data = read_all(database, "t").columns["e"]
        assert (data.kind, data.missing.tolist()) == (ColumnKind.ARRAY, [False, True, False])
        assert data.values[::2].tolist() == [[1.0, -2.0, 0.5]] * 2
        connection.execute(f"insert into t values (3, '\\x00020000{wire[8:-8]}')".encode())
        if name == "vector":
            with pytest.raises(DataError, match='"e", row 4: the vector has 2 elements, the rows before it have 3'):
                read_all(database, "t")


def test_a_vector_in_json_is_its_text_and_has_the_same_values() -> None:
    assert (
        column_of("e", ColumnKind.ARRAY, ["[1,-2,0.5]", None, [1, -2, 0.5]]).values[::2].tolist()
        == [[1, -2, 0.5]] * 2
    )
    with pytest.raises(DataError, match="is not a vector"):
        column_of("e", ColumnKind.ARRAY, ["[1,x]"])
