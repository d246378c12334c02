"""Check that SQL which runs under a caller's search_path qualifies all functions, operators, types and relations."""

import re

import pytest

from indb_tensile.catalog.queries import query
from indb_tensile.cli.statements import statement
from indb_tensile.sql_api import data_warnings, evaluations, spi, split_column, split_listing
from indb_tensile.sql_api.training_table import Table, TableColumn
from tests.conftest import Database
from tests.sql_api.fakes import FakePlpy

PINNED = "search_path=pg_catalog, pg_temp"
_KEYWORDS = {
    "and",
    "array",
    "as",
    "by",
    "case",
    "exists",
    "in",
    "lateral",
    "loop",
    "not",
    "or",
    "over",
    "using",
    "values",
    "when",
}
_KEYWORDS |= {"coalesce", "greatest", "least", "nullif", "operator", "select", "from", "where", "within", "filter"}
_KEYWORDS |= {"all", "any", "extract", "then"}  # the grammar resolves `extract` to pg_catalog for any path


def unqualified(text: str) -> list[str]:
    """Return the names and operators in the text that the search_path resolves."""
    text = re.sub(r"--[^\n]*", " ", text)
    text = re.sub(r"'(?:[^']|'')*'", "?", text)
    text = re.sub(r"%\(\w+\)s|\$\d+|\{\w+\}", "?", text)
    text = re.sub(r"operator\s*\(\s*pg_catalog\.[^)\s]+\s*\)", " ", text, flags=re.IGNORECASE)
    names = [name for name in re.findall(r"(?<![\w.])(\w+)\s*\(", text) if name.lower() not in _KEYWORDS]
    types = re.findall(r"::\s*(\w+)(?![\w.])", text)
    declared = re.findall(r"^\s+\w+ (?:constant )?(text|record|bigint|jsonb|oid)\b", text, flags=re.MULTILINE)
    relations = re.findall(r"\b(?:from|join|into|update)\s+(\w+)(?![\w.(])", text, flags=re.IGNORECASE)
    signs = text.replace("::", " ").replace(":=", " ").replace("=>", " ")
    operators = re.findall(r"[-+*/<>=~!@#%^&|]+", re.sub(r"\(\s*\*\s*\)|\.\*|select \*", " ", signs))
    return [
        *names,
        *types,
        *declared,
        *(r for r in relations if r.lower() not in {"pg_catalog", "lateral"}),
        *operators,
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select pg_catalog.now()", []),
        ("select now()", ["now"]),
        ("select 1::pg_catalog.int4", []),
        ("select 1::int4", ["int4"]),
        ("select from pg_catalog.pg_class as c where c.oid = 3", ["="]),
        ("select from pg_catalog.pg_class as c where c.oid operator(pg_catalog.=) 3", []),
        ("select from pg_class", ["pg_class"]),
        ("select f(x => 1) -- = now()", ["f"]),
        ("select 'now() = 1'", []),
    ],
)
def test_linter_finds_unqualified_names(text: str, expected: list[str]) -> None:
    assert unqualified(text) == expected


@pytest.mark.parametrize("name", ["train", "search", "check"])
def test_command_line_statements_under_the_users_path_are_qualified(name: str) -> None:
    assert unqualified(statement(name)) == []


@pytest.mark.parametrize(
    "name", ["pin_session", "pin_transaction", "installed_way", "catalog_version", "catalog_digest"]
)
def test_statements_before_a_session_is_pinned_are_qualified(name: str) -> None:
    assert unqualified(query(name)) == []


def test_statements_of_the_bridge_under_the_callers_path_are_qualified() -> None:
    for text in (spi.CURRENT_PATH, spi.SET_PATH, evaluations.RELATION_NAME):
        assert unqualified(text) == []
    assert unqualified(evaluations.ROWS) == []


def test_statements_on_a_callers_relation_are_qualified() -> None:
    columns = [
        TableColumn(name=name, type="t", kind=kind, key=False)
        for name, kind in (("a", "integer"), ("b", "float"), ("c", "boolean"), ("d", "text"), ("e", "time"))
    ]
    table = Table(oid=1, schema="public", name="t", columns=tuple(columns), source="public.t")
    plpy = FakePlpy({"sample": [{}], "first_rows": [{f"c{place}": [] for place in range(5)}]})
    split_column._count_parts(plpy, table, {"target": "a"}, "c")
    data_warnings._first_rows(plpy, table, columns)
    forms = {f"c{place}": form for place, form in enumerate(split_listing._HASH_EXPRESSIONS)}
    select = split_listing._statement(plpy, forms, list(forms), "c0", "c1")
    for text in (*(text for text, _ in plpy.executed), f"{select} from public.t as t"):
        unquoted = text.replace('"', "").replace("collate pg_catalog.C", "").replace("epoch from", "")
        assert unqualified(unquoted) == [], text


@pytest.mark.postgres
def test_every_function_is_independent_of_the_callers_search_path(
    database: Database,
) -> None:
    # It pins its path, or its body was parsed when it was created, or it qualifies every name: a procedure, which has
    # to commit, and a function that PostgreSQL has to write in place of its call.
    with database.connect() as connection:
        rows = connection.execute(
            """select p.oid::regprocedure::text, p.proconfig, p.prosqlbody is not null, p.prokind, p.prosrc
                 from pg_proc as p
                where p.pronamespace in ('tensile'::regnamespace, 'public'::regnamespace)
                  and not exists (select from pg_depend as d where d.objid = p.oid and d.deptype = 'e')"""
        ).fetchall()
    assert len(rows) > 50
    for name, settings, parsed, kind, source in rows:
        qualifies = kind == "p" or name.startswith("tensile_predict_rows(")
        assert PINNED in (settings or []) or parsed or qualifies, name
        if qualifies:
            assert unqualified(source) == [], name
    wrappers = sorted(name for name, settings, parsed, _, _ in rows if parsed and name.startswith("tensile_"))
    assert "tensile_check()" in wrappers
