"""Check the CONTEXT and HINT of errors: few lines of context, and for a role without rights how to get them."""

import re

import psycopg
import pytest

from tests.conftest import Database

from .conftest import Connection, Refused, Serve, refused

pytestmark = pytest.mark.postgres


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("statement", "lines"),
    [
        ("select tensile_train('m', 'iris', target => 'nosuch')", 1),
        ("select tensile_train_query('m', 'select * from iris', target => 'nosuch')", 1),
        ("select tensile_load_dataset('digits')", 1),
        ("select * from tensile_predict_table('m', 'iris')", 1),
        ("select tensile_predict_into('m', 'iris', 'answers')", 1),
        ("select tensile_create_model('m', 'nosuch')", 2),
        ("select * from tensile_explain('m', 'iris', target => 'nosuch')", 2),
        ("select * from tensile_explain_query('m', 'select * from iris', target => 'nosuch')", 2),
        ("call tensile_train_and_wait('m', 'iris', target => 'nosuch')", 2),
        ("select * from tensile_forecast('m', 'iris')", 1),
        ("select * from tensile_embed_table('m', 'iris')", 1),
        ("select * from tensile_predict_rows('m', null::iris)", 1),
        ("select tensile_create_predict_view('m', 'iris', 'v')", 2),
        ("select tensile_create_predict_function('m', 'iris', 'f')", 2),
        ("select tensile_create_predict_trigger('m', 'iris', 'species')", 2),
        ("call tensile_predict_into_and_wait('m', 'iris', 'answers')", 2),
        ("select * from tensile_evaluate('m')", 3),
        ("select * from tensile_confusion_matrix('m')", 3),
        ("call tensile_train_query_and_wait('m', 'select * from iris', target => 'nosuch')", 2),
    ],
)
def test_error_has_few_lines_of_context(alice: Connection, statement: str, lines: int) -> None:
    with pytest.raises(psycopg.Error) as caught:
        alice.execute(statement.encode())
    context = (caught.value.diag.context or "").splitlines()
    assert len(context) == lines, context
    assert context[0].startswith("PL/pgSQL function tensile.call(text,jsonb,jsonb[]) line ")


# PL/pgSQL adds a line for the function that raises an error, and nothing prevents that.
@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("call", "types"),
    [
        ("tensile_predict", "text,anycompatible,integer"),
        ("tensile_predict_label", "text,anycompatible,integer"),
        ("tensile_predict_labels", "text,anycompatible,integer"),
        ("tensile_predict_proba", "text,anycompatible,integer"),
        ("tensile_predict_vector", "text,anycompatible,integer"),
        ("tensile_predict_values", "text,anycompatible,integer"),
        ("tensile_embed", "text,anycompatible,integer,text"),
        ("tensile_explain_prediction", "text,anycompatible,integer,text,bigint"),
    ],
)
@pytest.mark.usefixtures("published")
def test_error_of_a_call_for_one_row_names_the_called_function_alone(
    database: Database, alice: Connection, serve: Serve, call: str, types: str
) -> None:
    refusal = {
        "sqlstate": "22000",
        "message": "column \"petal\": 'x' is not a number",
        "detail": "",
        "hint": "As text.",
    }
    serve(lambda _: {"ok": False, "error": refusal})

    def fault(connection: Connection, arguments: str) -> tuple[str | None, ...]:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(f"select * from {call}({arguments})".encode())
        error = caught.value.diag
        assert re.fullmatch(
            rf"PL/pgSQL function (public\.)?{call}\({re.escape(types)}\) line \d+ at RAISE", error.context or ""
        ), error.context
        return error.sqlstate, error.message_primary, error.message_detail, error.message_hint

    assert fault(alice, "'flowers', row('x', 2)") == (
        "22000",
        "column \"petal\": 'x' is not a number",
        None,
        "As text.",
    )
    assert fault(alice, "'none', row(1)")[:2] == ("42704", 'there is no model "none"')
    assert fault(alice, "null, row(1)")[:2] == ("22023", "the model's name is null")
    assert fault(alice, "'flowers', row(1), 9")[:2] == ("42704", 'model "flowers" has no version 9')
    assert fault(alice, "'flowers', '[1'")[0] == "22P02"
    assert fault(alice, "'flowers', repeat('x', 8388609)") == (
        "54000",
        "row 1 has 8388609 bytes, more than the 8388608 that a row may have",
        None,
        "Give the model's columns only, or arrays of fewer values.",
    )
    with database.connect("monitor") as monitor:
        assert fault(monitor, "'flowers', row(1)")[:2] == ("42501", 'role "monitor" is not a member of tensile_user')


@pytest.mark.shares_database
@pytest.mark.parametrize(
    "statement",
    [
        "select tensile_train('m', 'pg_catalog.pg_class')",
        "select * from tensile_explain('m', 'pg_catalog.pg_class')",
        "select tensile_train_query('m', 'select 1 as y')",
        "select * from tensile_explain_query('m', 'select 1 as y')",
        "call tensile_train_query_and_wait('m', 'select 1 as y')",
        "select tensile_create_model('m')",
        "select tensile_load_dataset('digits')",
        "call tensile_train_and_wait('m', 'pg_catalog.pg_class')",
        "select tensile_predict('m', row(1))",
        "select tensile_predict_label('m', '[1]')",
        "select * from tensile_predict_proba('m', array[1])",
        "select tensile_predict_vector('m', '[1]'::jsonb)",
        "select * from tensile_evaluate('m')",
        "select * from tensile_confusion_matrix('m')",
        "select * from tensile_roc_curve('m')",
        "select * from tensile_calibration('m')",
        "select * from tensile_label_metrics('m')",
        "select * from tensile_feature_importance('m')",
        "select * from tensile_explain_prediction('m', row(1))",
        "select * from tensile_split('m')",
        "select * from tensile_data_report(1)",
        "select * from tensile_training_info('m')",
        "select tensile_measure_drift('m')",
        "select * from tensile_training_history('m')",
        "select tensile_retry(1)",
        "select tensile_retrain('m')",
        "select tensile_set_priority(1, 1)",
        "select tensile_deploy('m', 1)",
        "select tensile_rollback('m')",
        "select tensile_rename_model('m', 'n')",
        "select tensile_wait(1)",
        "select tensile_cancel(1)",
        "select tensile_drop_model('m')",
        "select tensile_grant_model('m', 'alice')",
        "select tensile_revoke_model('m', 'alice')",
        "select * from tensile_check()",
    ],
)
def test_error_names_the_role_that_the_caller_lacks(database: Database, statement: str) -> None:
    with database.connect("monitor") as monitor:
        assert refused(monitor, statement) == Refused(
            "42501",
            'role "monitor" is not a member of tensile_user',
            None,
            "Ask an administrator for: grant tensile_user to monitor;",
        )


@pytest.mark.shares_database
@pytest.mark.parametrize(
    "statement",
    [
        "select tensile_set_setting('retain_jobs', '5')",
        "select * from tensile_vacuum()",
        "select tensile_set_quota('alice', 1)",
    ],
)
def test_error_names_the_role_that_an_administrators_function_needs(alice: Connection, statement: str) -> None:
    assert refused(alice, statement) == Refused(
        "42501",
        'role "alice" is not a member of tensile_admin',
        None,
        "Ask an administrator for: grant tensile_admin to alice;",
    )


def test_role_without_membership_can_call_no_inner_function(database: Database, admin: Connection) -> None:
    admin.execute("create role passer_by login")
    try:
        admin.execute("grant create on schema public to passer_by")
        admin.execute("set session authorization passer_by")
        for statement in (
            "select tensile.call('ping', '{}')",
            "select tensile.bridge('ping', '{}')",
            "select tensile.train('{}')",
            "call tensile.try_commit()",
            "create function mine() returns jsonb language sql return tensile.call('ping', '{}')",
            "select tensile_wait(1)",
            "select tensile_predict_batch('m', array[1])",
            "select tensile_version()",
            "select * from tensile.evaluation('m', 1, 1, '')",
            "select * from tensile.figure_rows('roc_curve', 'm', 1, 1, '{}', '')",
            "select * from tensile.attributions('m', 1, 1, 'a', 0)",
        ):
            assert refused(admin, statement).sqlstate == "42501", statement
    finally:
        admin.execute("reset session authorization")
        admin.execute("revoke create on schema public from passer_by; drop role passer_by")


@pytest.mark.shares_database
@pytest.mark.parametrize("call", ["batch", "batch_label", "batch_proba", "batch_values"])
@pytest.mark.usefixtures("published")
def test_error_of_a_batch_has_the_lines_that_postgresql_adds_for_sql_functions(alice: Connection, call: str) -> None:
    for arguments in ("'none', array[1]", "'none', array_fill(1, array[5000])", "'flowers', array[1], 9"):
        with pytest.raises(psycopg.Error) as caught:
            alice.execute(f"select tensile_predict_{call}({arguments})".encode())
        first, *others = (caught.value.diag.context or "").splitlines()
        assert first.startswith("PL/pgSQL function tensile.predictions(")
        assert first.endswith(" at RAISE")
        assert others == ['SQL function "batch" statement 1', f'SQL function "tensile_predict_{call}" statement 1']
