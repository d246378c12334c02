"""Check which arguments a training of a model of scikit-learn takes, and what it inherits from one of a network."""

from typing import Any

import pytest

from .conftest import Connection, refused, value

pytestmark = pytest.mark.postgres

TRAIN = "select tensile_train('trees', 'iris', target => 'species', architecture => {}{})"


def spec_of(connection: Connection) -> dict[str, Any]:
    return dict(value(connection, "select spec from tensile.jobs order by job_id desc limit 1"))


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("architecture", "more", "message", "hint"),
    [
        ("'boosting'", ", hyperparams => '{\"epochs\": 3}'",
         'hyperparams: "epochs" means nothing with architecture boosting',
         'Leave it out, or set a parameter of the architecture: {"type": "boosting", "iterations": 200}.'),
        ("'linear'", ", hyperparams => '{\"optimizer\": \"sgd\"}'",
         'hyperparams: "optimizer" means nothing with architecture linear',
         'Leave it out, or set a parameter of the architecture: {"type": "linear", "iterations": 200}.'),
        ("'boosting'", ", early_stop => '{\"patience\": 3}'", "early_stop means nothing with architecture boosting",
         'Give "patience" in the architecture.'),
        ("'linear'", ", early_stop => '{\"patience\": 3}'", "early_stop means nothing with architecture linear",
         "Leave it out."),
        ("'boosting'", ", memory_limit => '1GB'", "memory_limit means nothing with architecture boosting",
         "Leave it out: the model takes no device memory."),
        ("'{\"type\": \"boosting\", \"trees\": 3}'", "", 'architecture boosting: unknown parameter "trees"',
         "Known parameters: iterations, patience, learning_rate, leaves, max_depth, leaf_rows, l2, numbers, "
         "categories."),
        ("'{\"type\": \"linear\", \"l2\": 0}'", "", 'architecture linear: "l2" is 0', None),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_refused(
    alice: Connection, architecture: str, more: str, message: str, hint: str | None
) -> None:
    refusal = refused(alice, TRAIN.format(architecture, more))
    assert (refusal.sqlstate, refusal.message) == ("22023", message)
    assert refusal.hint == hint or (hint is None and refusal.hint)


def test_what_only_networks_take_is_not_inherited(alice: Connection, admin: Connection) -> None:
    options = (
        """, hyperparams => '{"epochs": 3, "seed": 4}', early_stop => '{"patience": 2}', memory_limit => '1GB'"""
    )
    alice.execute(TRAIN.format("'mlp'", options).encode())
    admin.execute(
        """update tensile.models as m set last_spec = j.spec, last_job_id = j.job_id
             from tensile.jobs as j where j.model_name = m.name"""
    )
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    alice.execute("select tensile_train('trees', 'iris', architecture => 'boosting')")
    spec = spec_of(alice)
    assert (spec["architecture"], spec["hyperparams"], spec["early_stop"]) == (
        {"type": "boosting"},
        {"seed": 4},
        None,
    )
    for expected in ('hyperparams {"epochs": 3}', 'early_stop {"patience": 2}'):
        assert any(expected in text and "as the new model is not a network" in text for text in notices), notices
    alice.execute("select tensile_train('trees', 'iris')")
    assert spec_of(alice)["hyperparams"] == {"epochs": 3, "seed": 4}


def test_there_is_no_plan_to_explain(alice: Connection) -> None:
    refusal = refused(
        alice, "select * from tensile_explain('trees', 'iris', target => 'species', architecture => 'boosting')"
    )
    assert refusal.message == 'architecture "boosting" has no plan: it is fitted on the processor'
    assert refusal.hint == "Train it with tensile_train, or explain a network: architecture => 'auto'."


def test_a_defined_model_is_checked_as_a_training_is(alice: Connection) -> None:
    refusal = refused(alice, """select tensile_create_model('trees', 'boosting', '{"batch_size": 64}')""")
    assert refusal.message == 'hyperparams: "batch_size" means nothing with architecture boosting'
