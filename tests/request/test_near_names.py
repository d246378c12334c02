"""The known name that an unknown one stands for."""

import pytest

from indb_tensile.request.near_names import did_you_mean, near_name

KNOWN = ("learning_rate", "batch_size", "micro_batch_size", "epochs", "adam", "adamw")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("learning_rat", "learning_rate"),
        ("learningRate", "learning_rate"),
        ("Learning-Rate", "learning_rate"),
        ("lr", "learning_rate"),
        ("bs", "batch_size"),
        ("MBS", "micro_batch_size"),
        ("epoch", "epochs"),
        ("learning", "learning_rate"),
        ("ADAM", "adam"),
        ("maad", "adam"),
        ("a", None),
        ("", None),
        ("momentum", None),
        (7, None),
        (None, None),
        ("learning_rate" * 100_000, None),
    ],
)
def test_the_nearest_name_is_that_of_the_likeliest_mistake(name: object, near: str | None) -> None:
    assert near_name(name, KNOWN) == near


def test_of_names_that_differ_in_case_only_the_same_one_or_else_the_first_is_meant() -> None:
    assert near_name("petal", ("Petal", "petal")) == "Petal"
    assert near_name("x", ()) is None


def test_the_question_ends_with_a_space_and_is_empty_without_a_near_name() -> None:
    assert did_you_mean("epoch", KNOWN) == 'Did you mean "epochs"? '
    assert did_you_mean("zzz", KNOWN) == ""
