"""The functions that take the arguments of a training take the same ones, which stand once in the source."""

from typing import Any

import pytest

from indb_tensile.catalog import install
from indb_tensile.catalog.train_signature import fill_train_signature
from indb_tensile.errors import InvariantError
from tests.conftest import Database

DECLARING = """create function public.tensile_train(
  model text, relation regclass,
  max_runtime interval default null
) returns bigint"""


def test_the_placeholders_become_parameters_names_and_fields() -> None:
    source = (
        "f(\n  @TRAIN_PARAMETERS@) g(@TRAIN_ARGUMENTS@) h(@TRAIN_FIELDS@) "
        "q(@TRAIN_QUERY_PARAMETERS@) p(@TRAIN_QUERY_ARGUMENTS@)"
    )
    assert fill_train_signature(source, DECLARING) == (
        "f(\n  model text, relation regclass,\n  max_runtime interval default null) g(model, relation, max_runtime) "
        "h('model', model, 'relation', relation::oid::bigint, 'max_runtime_s', extract(epoch from max_runtime)) "
        "q(model text, query text,\n  max_runtime interval default null) p(model, null, max_runtime)"
    )


@pytest.mark.parametrize("declaring", ["", DECLARING.replace("null", "f(1, 2)")])
def test_a_declaration_of_another_form_ends_the_installation(declaring: str) -> None:
    with pytest.raises(InvariantError, match=r"public\.tensile_train is not"):
        fill_train_signature("@TRAIN_PARAMETERS@", declaring)


def test_the_parameters_stand_once_in_the_source() -> None:
    folder = install.sql_directory()
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.sql")]
    assert sum(text.count("transform jsonb default null") for text in texts) == 1


@pytest.mark.postgres
def test_all_functions_of_a_training_take_the_same_arguments(database: Database) -> None:
    with database.connect() as connection:
        rows: list[tuple[str, str]] = connection.execute(
            """select p.oid::regproc::text, pg_get_function_arguments(p.oid) from pg_proc as p
                where p.proname = any(array['tensile_train', 'tensile_train_and_wait', 'tensile_explain',
                                            'training_request'])"""
        ).fetchall()
        names: list[str] = _value(
            connection, "select proargnames from pg_proc where oid = 'public.tensile_train'::regproc"
        )
        of_query: list[tuple[list[str]]] = connection.execute(
            """select p.proargnames[:cardinality(n.proargnames)] from pg_proc as p, pg_proc as n
                where p.proname = any(array['tensile_train_query', 'tensile_train_query_and_wait',
                                            'tensile_explain_query'])
                  and n.oid = 'public.tensile_train_query'::regproc"""
        ).fetchall()
        request: dict[str, Any] = _value(
            connection,
            "select tensile.training_request('m', 'pg_class', max_runtime => '2 minutes', priority => 3)",
        )
    assert len(rows) == 4
    common = {arguments.removesuffix(_JOB).replace("IN ", "") for _, arguments in rows}
    assert len(common) == 1, common
    renamed = {"max_runtime": "max_runtime_s"}
    assert set(request) == {*(renamed.get(name, name) for name in names), "search_path"}
    assert (request["relation"], request["max_runtime_s"], request["priority"]) == (1259, 120, 3)
    assert of_query == 3 * [(["query" if name == "relation" else name for name in names if name != "snapshot"],)]


_JOB = ", INOUT job bigint DEFAULT NULL::bigint"  # of the procedure


def _value(connection: Any, statement: str) -> Any:
    return connection.execute(statement).fetchone()[0]
