"""Check the schema pgml: predictions, deployments, its installation, and that other users gain nothing by it."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from indb_tensile.catalog.pgml_schema import install_pgml
from tests.conftest import Database
from tests.sql.traps import set_traps, trap_calls

from .conftest import Connection, Serve, refused, value
from .fakes import result
from .test_qualified import PINNED, unqualified

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database, pytest.mark.usefixtures("pgml")]


@pytest.fixture
def serve(admin: Connection, serve: Serve) -> Serve:
    """A function that starts a fake service in place of those of earlier tests."""
    admin.execute("delete from tensile.settings where name = 'socket_directory'; delete from tensile.workers")
    return serve


@pytest.fixture
def model(admin: Connection, alice: Connection) -> Iterator[int]:
    """The id of the deployed second version of alice's project `flowers`, a linear one. The first one is an mlp."""
    alice.execute("select tensile_create_model('flowers')")
    (model,) = admin.execute(
        """insert into tensile.model_versions (model_id, number, task, target, architecture, metric_name, metric,
               higher_is_better, metrics, parameters, weights_bytes, deployed, training, relation_oid,
               relation_schema, relation_name)
           select m.model_id, v.number, 'classification', 'species', v.network::jsonb, 'f1_macro', v.metric, true,
                  jsonb_build_object('f1_macro', v.metric), 10, 40, v.number = 2,
                  '{"features": ["petal", "sepal"], "split": {"last": 0.2}, "hyperparams": {"epochs": 3}}',
                  'iris'::regclass, 'public', 'iris'
             from tensile.models as m,
                  (values (1, '{"type": "mlp", "hidden": [8]}', 0.9), (2, '{"type": "mlp", "hidden": []}', 0.8))
                    as v (number, network, metric)
            where m.name = 'flowers' and m.dropped_at is null order by v.number
           returning version_id"""
    ).fetchall()[-1]
    yield int(model)
    alice.execute("select tensile_drop_model('flowers')")


# Prediction --------------------------------------------------------------------------------------------------------

A_ROW = [{"petal": 1, "sepal": 2}]
ROWS = "(select petal, sepal from iris where id < 3 order by id)"


@pytest.mark.parametrize(
    ("call", "sent", "answer"),
    [
        ("predict({}, array[1.5, 2.5]::real[])", [[1.5, 2.5]], 7),
        ("predict({}, array[1, 2])", [[1, 2]], 7),
        ("predict({}, array[true, false])", [[True, False]], 7),
        ("predict({}, '{{1,2}}')", [[1, 2]], 7),
        ("predict({}, (select x from (select 1 as petal, 2 as sepal) as x))", A_ROW, 7),
        ("predict({}, (1, 'b'))", [{"f1": 1, "f2": "b"}], 7),
        ("predict({}, null::real[])", [], None),
        ("predict_proba({}, array[1, 2])", [[1, 2]], [0.1, 0.3, 0.6]),
        ("predict_proba({}, null::real[])", [], None),
        ("predict_batch({}, array[1.5, 2.5])", [[1.5, 2.5]], 7),
        ("predict_batch({}, array[(1, 'b')])", [{"f1": 1, "f2": "b"}], 7),
    ],
)
def test_features_are_sent_in_every_form(
    alice: Connection, model: int, serve: Serve, call: str, sent: list[Any], answer: Any
) -> None:
    probabilities = {"10": 0.6, "9": 0.3, "-1": 0.1}
    service = serve(
        lambda request: result(
            {"values": [7.0 if request["kind"] == "value" else probabilities] * len(request["rows"])}
        )
    )
    for named in ("'flowers'", str(model)):
        listed = named != "'flowers'" and "batch" in call
        assert value(alice, f"select pgml.{call.format(named)}") == ([answer] if listed else answer)
    assert [request["rows"] for request in service.requests] == ([sent, sent] if sent else [])
    assert {request["version"] for request in service.requests} <= {model}


def test_rows_of_a_batch_keep_their_order(alice: Connection, model: int, serve: Serve) -> None:
    serve(lambda request: result({"values": [float(str(row)[-2]) for row in request["rows"]]}))
    arrays = "(select array_agg(array[0, n]) from generate_series(1, 5) as n)"
    assert value(alice, f"select array_agg(p) from pgml.predict_batch('flowers', {arrays}) as p") == [1, 2, 3, 4, 5]
    assert value(alice, f"select pgml.predict_batch({model}, {arrays})") == [1, 2, 3, 4, 5]
    assert alice.execute("select pgml.predict_batch('flowers', '{}'::int[])").fetchall() == []


def test_load_dataset_creates_the_table_in_the_current_schema(alice: Connection, serve: Serve) -> None:
    page = {"columns": [["id", "int"]], "primary_key": "id"}
    serve(lambda request: result(page | {"rows": [] if request["offset"] else [[1], [2]]}))
    assert alice.execute("select * from pgml.load_dataset('wine')").fetchall() == [("public.wine", 2)]
    assert value(alice, "select count(*) from wine") == 2


# Deployment --------------------------------------------------------------------------------------------------------


def test_strategies_deploy_versions_and_the_views_show_them(alice: Connection, model: int) -> None:
    def deploy(arguments: str) -> list[tuple[Any, ...]]:
        return alice.execute(f"select * from pgml.deploy({arguments})".encode()).fetchall()

    assert deploy("'flowers'") == [("flowers", "best_score", "mlp")]
    assert deploy("'flowers', 'rollback'") == [("flowers", "rollback", "linear")]
    assert deploy("'flowers', 'Most_Recent', 'mlp'") == [("flowers", "most_recent", "mlp")]
    assert deploy("'flowers', 'best_score', 'linear'") == [("flowers", "best_score", "linear")]
    assert deploy(str(model - 1)) == [("flowers", "specific", "mlp")]
    errors = [
        refused(alice, f"select pgml.deploy({arguments})")
        for arguments in (
            "'flowers', 'new_score'",
            "'flowers', null",
            "'flowers', 'best_score', 'xgboost'",
            "'weeds'",
            "0",
        )
    ]
    assert [error.sqlstate for error in errors] == ["22023", "22023", "55000", "42704", "42704"]

    listed = alice.execute(
        "select strategy from pgml.deployments join pgml.projects as p on p.id = project_id "
        "where p.name = 'flowers' order by deployments.id"
    ).fetchall()
    assert [strategy for (strategy,) in listed] == [
        "specific", "best_score", "rollback", "most_recent", "best_score", "specific"
    ]  # fmt: skip
    assert alice.execute(
        "select id, algorithm, test_sampling, test_size, deployed from pgml.trained_models where name = 'flowers'"
    ).fetchall() == [
        (model, "linear", "last", pytest.approx(0.2), False),
        (model - 1, "mlp", "last", pytest.approx(0.2), True),
    ]
    assert alice.execute(
        "select id, name, deployed_at is not null from pgml.deployed_models where name = 'flowers'"
    ).fetchall() == [(model - 1, "flowers", True)]
    assert value(alice, "select metrics ->> 'f1' from pgml.models where id = %s", model) == "0.8"
    assert alice.execute(
        "select distinct relation_name, y_column_name from pgml.overview where name = 'flowers'"
    ).fetchall() == [("public.iris", ["species"])]


# Other users -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "sqlstate"),
    [
        ("train('flowers', 'regression', 'bobs', 'x')", "42501"),
        ("train('flowers')", "55000"),
        ("train('own', 'regression', 'iris', 'petal')", "42501"),
        ("predict('flowers', array[1, 2])", "42704"),
        ("predict({}, array[1, 2])", "42704"),
        ("predict_proba({}, array[1, 2])", "42704"),
        ("predict_batch({}, array[1, 2])", "42704"),
        ("deploy('flowers')", "42704"),
        ("deploy({})", "42704"),
    ],
)
def test_models_of_another_user_stay_out_of_reach(
    bob: Connection, model: int, serve: Serve, call: str, sqlstate: str
) -> None:
    serve(lambda _: result({"values": [1.0]}))
    bob.execute(
        "create table if not exists bobs as select n * 0.5 as x, n % 2 as y from generate_series(1, 9) as n; "
        "grant select on bobs to tensile_reader"
    )
    assert refused(bob, f"select pgml.{call.format(model)}").sqlstate == sqlstate
    views = ("projects", "models", "deployments", "overview", "trained_models", "deployed_models")
    assert [value(bob, f"select count(*) from pgml.{view}") for view in views] == [0] * len(views)


@pytest.mark.usefixtures("model")
def test_a_grantee_predicts_and_deploys_nothing(alice: Connection, bob: Connection, model: int) -> None:
    alice.execute("select tensile_grant_model('flowers', 'bob')")
    assert refused(bob, "select pgml.deploy('flowers', 'most_recent')").sqlstate == "42501"
    assert refused(bob, f"select pgml.deploy({model - 1})").sqlstate == "42501"
    assert refused(bob, "select pgml.train('flowers')").sqlstate == "55000"
    assert value(bob, "select name from pgml.deployed_models") == "flowers"


def test_a_role_that_is_no_user_is_told_what_it_lacks(database: Database) -> None:
    with database.connect("monitor") as monitor:
        for call in ("train('p')", "predict('p', 1)", "predict_proba('p', 1)", "deploy('p')", "predict(1, 1)"):
            error = refused(monitor, f"select pgml.{call}")
            assert (error.sqlstate, error.hint) == (
                "42501",
                "Ask an administrator for: grant tensile_user to monitor;",
            )
        assert value(monitor, "select count(*) from pgml.overview") >= 0


def test_calls_run_no_function_of_another_role(
    alice: Connection, bob: Connection, admin: Connection, model: int, serve: Serve
) -> None:
    serve(lambda request: result({"values": [7.0] * len(request["rows"])}))
    alice.execute("grant select on iris to bob; select tensile_grant_model('flowers', 'bob')")
    set_traps(alice, "public")
    bob.execute("set search_path = public, pg_catalog")
    for call in (
        "train('bobs own', 'classification', 'iris', 'species', preprocess => '{\"petal\": {\"impute\": \"mean\"}}')",
        "train('bobs own')",
        f"predict({model}, array[1, 2])",
        "predict_batch('flowers', array[1, 2])",
    ):
        value(bob, f"select pgml.{call}")
    for call in ("deploy('flowers')", "embed('a', 'b')", "train('x', 'classification', 'no', 'no')"):
        refused(bob, f"select pgml.{call}")
    assert trap_calls(alice) == []
    # The caller's search_path finds the relation, and nothing is left of it or of the pinned one afterwards.
    assert value(bob, "show search_path") == "public, pg_catalog"
    admin.execute("drop function public.to_jsonb, public.concat_ws, public.jsonb_build_array")


def test_functions_are_pinned_commented_and_not_security_definer(admin: Connection) -> None:
    functions = admin.execute(
        """select p.oid::regprocedure::text, p.prokind::text, p.prosqlbody is not null, p.proconfig, p.prosecdef,
                  p.prosrc, obj_description(p.oid, 'pg_proc')
             from pg_proc as p where p.pronamespace = 'pgml'::regnamespace"""
    ).fetchall()
    assert len(functions) > 40
    for name, kind, parsed, settings, definer, source, comment in functions:
        assert kind == "p" or parsed or PINNED in (settings or ()), name
        assert kind == "f" or unqualified(source) == [], name
        assert comment, name
        assert not definer, name
    assert (
        admin.execute(
            """select c.relname, a.attname from pg_class as c join pg_attribute as a on a.attrelid = c.oid
            where c.relnamespace = 'pgml'::regnamespace and c.relkind = 'v' and a.attnum > 0
              and (col_description(c.oid, a.attnum) is null or obj_description(c.oid, 'pg_class') is null
                   or not c.reloptions @> '{security_invoker=true}')"""
        ).fetchall()
        == []
    )


# Installation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        ("drop schema pgml cascade; create schema pgml authorization alice", "schema pgml is"),
        ("grant create on schema pgml to alice", "CREATE"),
        ("alter function pgml.version() owner to alice", "function pgml.version()"),
        ("alter view pgml.projects owner to alice", "relation pgml.projects"),
    ],
)
def test_a_schema_that_others_can_change_is_not_installed_into(admin: Connection, prepare: str, named: str) -> None:
    with admin.transaction(force_rollback=True):
        admin.execute(prepare.encode())
        with pytest.raises(psycopg.errors.DuplicateSchema) as caught:
            install_pgml(admin)
    assert named in str(caught.value)
    assert "rename" in (caught.value.diag.message_hint or "")


def test_dropping_the_schema_leaves_the_catalog(admin: Connection) -> None:
    with admin.transaction(force_rollback=True):
        admin.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier("pgml")))
        assert value(admin, "select tensile_version()") == value(admin, "select tensile.catalog_version()")
        assert value(admin, "select count(*) from pg_proc where pronamespace = to_regnamespace('pgml')") == 0
