"""Check which jobs and specifications `tensile_train` enqueues."""

from typing import Any

import pytest

from indb_tensile.job import JobSpec, Relation, Task
from tests.conftest import Database

from .conftest import Connection, value

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

msgspec = pytest.importorskip("msgspec")


def train(connection: Connection, arguments: str = "target => 'species'") -> int:
    return int(value(connection, f"select tensile_train('flowers', 'iris', {arguments})"))


def spec_of(connection: Connection, job: int) -> dict[str, Any]:
    spec: dict[str, Any] = value(connection, "select spec from tensile.jobs where job_id = %s", job)
    return spec


def test_call_with_a_name_and_a_table_derives_the_rest(alice: Connection) -> None:
    alice.execute(
        """create table digits (id bigint primary key, pixels real[], label int);
           insert into digits select i, array_fill(mod(i, 3)::real, array[8, 8]), mod(i, 3)
             from generate_series(1, 30) as i;
           grant select on digits to tensile_reader"""
    )
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))

    job = value(alice, "select tensile_train('digits', 'digits')")

    relation = Relation(oid=value(alice, "select 'digits'::regclass::oid"), schema="public", name="digits")
    assert msgspec.convert(spec_of(alice, job), JobSpec) == JobSpec(
        model="digits",
        relation=relation,
        target="label",
        task=Task.CLASSIFICATION,
        architecture={"type": "auto"},
        exclude=("id",),
        column_numbers={"pixels": 2, "label": 3},
    )
    assert notices == [
        'task is classification, as target "label" is an integer of 3 values',
        "left out of the features, as keys only identify rows: id "
        "(name them in features => array[...] to learn from them)",
    ]


def test_every_argument_is_in_the_specification(alice: Connection) -> None:
    job = train(
        alice,
        """target => 'petal', task => 'regression', architecture => '{"type": "mlp", "hidden": [8]}',
           hyperparams => '{"epochs": 3}', features => array['sepal', 'kind'], exclude => array['species'],
           preprocess => '{"categories": 5}', split => '{"seed": 7}', metric => 'mae',
           early_stop => '{"patience": 2}', priority => 5, memory_limit => '1 GB', max_runtime => '2 minutes',
           deploy => 'never',
           not_before => '2040-01-01 00:00+00', idempotency_key => 'once'""",
    )

    spec = spec_of(alice, job)
    del spec["relation"]
    assert spec.pop("column_numbers") == {"petal": 2, "sepal": 3, "kind": 5}
    assert spec == {
        "model": "flowers",
        "target": "petal",
        "task": "regression",
        "architecture": {"type": "mlp", "hidden": [8]},
        "hyperparams": {"epochs": 3},
        "features": ["sepal", "kind"],
        "exclude": ["species"],
        "preprocess": {"categories": 5},
        "split": {"seed": 7},
        "metric": "mae",
        "early_stop": {"patience": 2},
        "memory_limit_bytes": 1 << 30,
        "max_runtime_s": 120,
        "deploy": "never",
    }
    assert value(
        alice, "select (priority, not_before at time zone 'utc', idempotency_key)::text from tensile.jobs"
    ) == ('(5,"2040-01-01 00:00:00",once)')


def test_job_for_several_devices_says_so_and_is_repeated_on_as_many(alice: Connection, admin: Connection) -> None:
    job = train(alice, "target => 'species', devices => 3")
    devices = "select devices from tensile.jobs where job_id = %s"
    assert (spec_of(alice, job)["devices"], value(alice, devices, job)) == (3, 3)
    admin.execute(
        "update tensile.jobs set state = 'failed', finished_at = now(), error_message = 'e' where job_id = %s", (job,)
    )
    again = value(alice, "select tensile_retry(%s)", job)
    assert value(alice, devices, again) == 3
    assert "devices" not in spec_of(alice, train(alice, "target => 'species', devices => 1"))


@pytest.mark.parametrize(
    ("target", "task"),
    [("species", "classification"), ("label_known", "classification"), ("petal", "regression"), ("id", "regression")],
)
def test_task_is_derived_from_the_target(alice: Connection, target: str, task: str) -> None:
    assert spec_of(alice, train(alice, f"target => '{target}'"))["task"] == task


def test_omitted_arguments_are_inherited_from_the_last_successful_run(alice: Connection, admin: Connection) -> None:
    job = train(
        alice,
        """target => 'species', architecture => 'mlp', hyperparams => '{"epochs": 3}', features => array['petal'],
           split => '{"seed": 7}', metric => 'log_loss', early_stop => '{}'""",
    )
    alice.execute("select tensile_create_model('flowers')")
    admin.execute("update tensile.models set last_spec = (select spec from tensile.jobs where job_id = %s)", (job,))

    second_spec = spec_of(alice, value(alice, "select tensile_train('flowers', 'iris', priority => 3)"))
    empty_hyperparams = spec_of(alice, value(alice, "select tensile_train('flowers', 'iris', hyperparams => '{}')"))

    assert second_spec == spec_of(alice, job)
    assert empty_hyperparams == second_spec | {"hyperparams": {}}


def test_omitted_defaults_are_not_inherited_as_values(alice: Connection, admin: Connection) -> None:
    job = train(alice, "target => 'species'")
    alice.execute("select tensile_create_model('flowers')")
    admin.execute("update tensile.models set last_spec = (select spec from tensile.jobs where job_id = %s)", (job,))

    second_spec = spec_of(alice, value(alice, "select tensile_train('flowers', 'iris')"))

    assert (second_spec["hyperparams"], second_spec["early_stop"]) == ({}, None)


def test_disabled_early_stopping_is_inherited(alice: Connection, admin: Connection) -> None:
    job = train(alice, """target => 'species', early_stop => '{"on": false}'""")
    alice.execute("select tensile_create_model('flowers')")
    admin.execute("update tensile.models set last_spec = (select spec from tensile.jobs where job_id = %s)", (job,))

    assert spec_of(alice, value(alice, "select tensile_train('flowers', 'iris')"))["early_stop"] == {"on": False}


def test_loss_of_another_task_is_not_inherited(alice: Connection, admin: Connection) -> None:
    job = train(alice, """target => 'species', hyperparams => '{"loss": "focal", "epochs": 2}'""")
    alice.execute("select tensile_create_model('flowers')")
    admin.execute("update tensile.models set last_spec = (select spec from tensile.jobs where job_id = %s)", (job,))

    assert spec_of(alice, value(alice, "select tensile_train('flowers', 'iris')"))["hyperparams"] == {
        "loss": "focal",
        "epochs": 2,
    }
    assert spec_of(alice, train(alice, "target => 'petal'"))["hyperparams"] == {}


def test_task_is_not_inherited_for_another_target(alice: Connection, admin: Connection) -> None:
    job = train(alice, "target => 'species', metric => 'log_loss'")
    alice.execute("select tensile_create_model('flowers')")
    admin.execute("update tensile.models set last_spec = (select spec from tensile.jobs where job_id = %s)", (job,))

    spec = spec_of(alice, train(alice, "target => 'petal'"))

    assert (spec["task"], spec["metric"]) == ("regression", None)


def test_training_uses_the_definition_of_the_model(alice: Connection) -> None:
    alice.execute("""select tensile_create_model('flowers', '{"type": "mlp", "hidden": [4]}', '{"epochs": 9}')""")

    spec = spec_of(alice, train(alice))

    assert (spec["architecture"], spec["hyperparams"]) == ({"type": "mlp", "hidden": [4]}, {"epochs": 9})


def test_one_idempotency_key_is_one_job_even_with_other_arguments(alice: Connection) -> None:
    first = train(alice, "target => 'species', idempotency_key => 'monday'")
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))

    assert train(alice, "target => 'petal', idempotency_key => 'monday'") == first
    assert notices == [
        f'job {first} has the idempotency_key "monday", so nothing is enqueued, whatever the other arguments are'
    ]
    assert train(alice, "target => 'species', idempotency_key => 'tuesday'") != first


def test_idempotency_key_belongs_to_its_owner(alice: Connection, bob: Connection) -> None:
    first = train(alice, "target => 'species', idempotency_key => 'monday'")
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    alice.execute("grant select on iris to bob")

    other = value(bob, "select tensile_train('b', 'iris', target => 'species', idempotency_key => 'monday')")

    assert other != first


def test_names_are_quoted_in_statements(alice: Connection) -> None:
    alice.execute(
        """create table "Odd; drop table iris" ("a""b" real, "label" text);
           insert into "Odd; drop table iris" values (1, 'x'), (2, 'y'), (3, 'x');
           grant select on "Odd; drop table iris" to tensile_reader"""
    )

    job = value(alice, """select tensile_train('m', '"Odd; drop table iris"')""")

    assert spec_of(alice, job)["relation"]["name"] == "Odd; drop table iris"


def test_rolled_back_call_leaves_no_job(database: Database, alice: Connection) -> None:
    with database.connect("alice") as connection:
        connection.autocommit = False
        train(connection)
        connection.rollback()

    assert value(alice, "select count(*) from tensile.jobs") == 0


def test_domains_over_domains_and_arrays_are_accepted(alice: Connection) -> None:
    alice.execute(
        """create domain size as real; create domain small as size; create domain pair as real[];
           create domain near as pair;
           create table t as select i::real::small as a, array[i, 1]::near as b, i % 2 as y
             from generate_series(1, 9) as i;
           grant select on t to tensile_reader"""
    )

    assert value(alice, "select tensile_train('m', 't', features => array['a', 'b'])") > 0


def test_preprocessing_options_are_enqueued_unchanged(alice: Connection) -> None:
    job = train(
        alice, """target => 'species', preprocess => '{"missing": "indicator", "standardize": {"petal": false}}'"""
    )

    assert spec_of(alice, job)["preprocess"] == {"missing": "indicator", "standardize": {"petal": False}}


def test_notice_names_numbers_with_far_values_until_their_scale_is_chosen(alice: Connection) -> None:
    alice.execute(
        """create table payments (amount float8, fee float8, late boolean);
           insert into payments select exp(i / 20.0), i, i % 3 = 0 from generate_series(1, 300) as i;
           grant select on payments to tensile_reader"""
    )
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))

    def far_values(preprocess: str, architecture: str = "auto") -> list[str]:
        notices.clear()
        statement = "select tensile_train('late', 'payments', 'late', architecture => %s, preprocess => %s)"
        value(alice, statement, architecture, preprocess)
        return [notice for notice in notices if "far from all others" in notice]

    value(alice, "select tensile_train('late', 'payments', 'late', exclude => '{amount}')")
    like_keys = "features that look like keys, with a different value in each of 300 rows: fee"
    assert f"{like_keys} (leave them out with exclude => array['amount', 'fee'])" in notices
    assert far_values('{"missing": "median"}') == [
        "features with a few values far from all others, which hardly differ beside them: amount (to scale by rank: "
        """preprocess => '{"missing": "median", "scale": {"amount": "quantile"}}'; """
        "or architecture => 'tabm', which takes longer)"
    ]
    assert far_values('{"scale": {"amount": "standard"}}') == far_values('{"scale": "log"}') == []
    assert far_values("{}", "boosting") == far_values("{}", "tabm") == []
