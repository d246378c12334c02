"""Statements are written in ASCII for databases whose encoding is not UTF-8, and mean the same."""

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indb_tensile.sql_api.ascii_statements import AsciiStatements, in_ascii
from tests.conftest import Database

LETTERS = "aZ_ßÄ名😀é"
names = st.text(alphabet=LETTERS + " \\\"'$1", min_size=1, max_size=12)
words = st.text(alphabet="aZ_ßÄ名😀é", min_size=1, max_size=10).map(lambda text: f"x{text}")
texts = st.text(alphabet=LETTERS + " \\\"'$1\n-/*", max_size=16)


def plain(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def escape_string(text: str) -> str:
    return "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def unicode_string(text: str) -> str:
    return "U&" + plain(text.replace("\\", "\\\\"))


def dollar_quoted(text: str) -> str:
    return f"$ß${text}$ß$"


constants = st.one_of(
    texts.map(plain),
    texts.map(escape_string),
    texts.map(unicode_string),
    texts.filter(lambda text: "$" not in text).map(dollar_quoted),
)
aliases = st.one_of(names.map(lambda name: '"' + name.replace('"', '""') + '"'), words)
comments = st.sampled_from([" ", "/* é /* ' */ ß */", "-- 'é\n", '/* " */\n'])
items = st.tuples(constants, comments, aliases).map(lambda parts: f"{parts[0]}{parts[1]} as {parts[2]}")
statements = st.lists(items, min_size=1, max_size=4).map(lambda each: "select " + ", ".join(each))


@pytest.fixture(scope="module")
def session(database_of_module: Database) -> Iterator[psycopg.Connection]:
    with database_of_module.connect() as connection:
        yield connection


@pytest.mark.postgres
@pytest.mark.shares_database
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(statement=statements)
def test_a_statement_in_ascii_has_the_same_columns_and_values(session: psycopg.Connection, statement: str) -> None:
    written = in_ascii(statement)
    assert written.isascii()

    before, after = (session.execute(text.encode()) for text in (statement, written))
    assert [column.name for column in after.description or ()] == [column.name for column in before.description or ()]
    assert after.fetchall() == before.fetchall()


def test_a_statement_in_ascii_stays_as_it_is() -> None:
    statement = "select 'It''s', \"a\"\"b\", U&'\\00e9' -- comment"
    assert in_ascii(statement) == statement


@pytest.mark.parametrize("statement", ["select 'é", 'select "é', "select $$é", "select /* é", "select E'é\\"])
def test_a_token_without_an_end_is_still_refused(session: psycopg.Connection, statement: str) -> None:
    with pytest.raises(psycopg.errors.SyntaxError):
        session.execute(in_ascii(statement).encode())


class QuotesWrongly:
    """PL/Python's quoting, which is right for ASCII alone."""

    def quote_ident(self, name: str) -> str:
        assert name.isascii()
        return f"<{name}>"

    def quote_literal(self, text: str) -> str:
        assert text.isascii()
        return f"<{text}>"


def test_names_and_texts_beyond_ascii_are_not_quoted_by_plpython() -> None:
    plpy = AsciiStatements(QuotesWrongly())  # type: ignore[arg-type]  # it has the two methods alone
    assert [plpy.quote_ident(name) for name in ("a", 'é"')] == ["<a>", '"é"""']
    assert [plpy.quote_literal(text) for text in ("a", "é'\\")] == ["<a>", "E'\\U000000e9''\\\\'"]
