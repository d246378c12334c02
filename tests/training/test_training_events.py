"""The events of a training state the settings that the trainer chose, and warn about columns of little use."""

import re
from typing import Any

import numpy as np
import pytest

from indb_tensile.job import Task
from indb_tensile.learning.training.preparation import assemble
from tests.learning.tables import sample, spec, table
from tests.learning.test_length_buckets import prepared
from worker.training.training_events import in_words, tell_columns, tell_settings, training_facts

IRIS = sample("iris")


class RecordedEvents:
    """Records the events of a training."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def tell(self, kind: str, detail: Any) -> None:
        self.events.append((kind, detail))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {},
            "batch_size 16, at most 429 epochs (batch_size and epochs chosen for {rows} training rows); "
            "training stops after 86 epochs without a better validation loss",
        ),
        (
            {"hyperparams": {"epochs": 9}},
            "batch_size 16, 9 epochs (batch_size chosen for {rows} training rows); training does not stop early",
        ),
        (
            {"hyperparams": {"epochs": 9, "batch_size": 8}, "early_stop": {"patience": 2, "metric": "accuracy"}},
            "batch_size 8, at most 9 epochs; training stops after 2 epochs without a better validation accuracy",
        ),
        (
            {"split": {"valid_size": 0}, "hyperparams": {"batch_size": 64}},
            "batch_size 64, 500 epochs (epochs chosen for {rows} training rows); "
            "training does not stop early, as the validation part has 0 rows",
        ),
    ],
)
def test_the_settings_are_described_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    prepared = assemble(IRIS, spec("target", **options))
    sentence = sentence.format(rows=prepared.train.rows)
    network = '{"hidden": [32], "dropout": 0.2}'
    together = "an ensemble of 5, " if "epochs" not in options.get("hyperparams", {}) else ""
    of_auto = together + sentence
    if together:
        of_auto = of_auto.replace("(batch_size and epochs chosen", "(batch_size, epochs and ensemble chosen")
        of_auto = of_auto.replace("(epochs chosen", "(epochs and ensemble chosen")
    assert in_words(prepared) == f"mlp {network}, as fewer than 1000 rows train; {of_auto}"
    named = assemble(IRIS, spec("target", architecture={"type": "mlp", "hidden": [4]}, **options))
    assert in_words(named) == sentence


def test_the_lengths_of_texts_are_told() -> None:
    lengths = r'; texts of column "body" are padded to (\d+, )*\d+ or 16 tokens, '
    assert re.search(lengths + r"\d\d% of the tokens that batches of 16 have$", in_words(prepared()))


def test_the_chosen_settings_are_recorded_and_repeat_the_training_as_a_request() -> None:
    prepared = assemble(IRIS, spec("target"))
    record = RecordedEvents()
    tell_settings(record, prepared)
    ((kind, detail),) = record.events
    assert (kind, detail["train_rows"], detail["chosen"]) == (
        "settings", prepared.train.rows, ["batch_size", "epochs", "early_stop", "ensemble"],
    )  # fmt: skip
    facts = training_facts(prepared)
    again = assemble(IRIS, spec("target", hyperparams=facts["hyperparams"], early_stop=facts["early_stop"]))
    assert (again.settings, again.early_stop) == (prepared.settings, prepared.early_stop)


def test_text_columns_with_too_many_values_are_warned_about_by_name() -> None:
    described = [("id", "bigint"), ("many", "text"), ("own", "text"), ("few", "text"), ("y", "double precision")]
    numbers = np.random.default_rng(0).integers(0, 50, 600)
    rows = [[i, f"m{numbers[i]}", f"own {i}", f"f{i % 3}", float(numbers[i])] for i in range(600)]
    prepared = assemble(table(described, rows), spec("y", Task.REGRESSION))
    record = RecordedEvents()
    tell_columns(record, prepared)
    assert [(kind, detail["column"], detail["distinct"]) for kind, detail in record.events] == [
        ("warning", "many", 50), ("warning", "own", prepared.train.rows),
    ]  # fmt: skip
    many, own = (detail["message"] for _, detail in record.events)
    assert many.startswith('column "many" has 50 different texts, more than the 32 categories of preprocess: ')
    assert many.endswith(" of its rows count as (other)")
    assert "nothing can be learned" in own
    assert 0.2 < record.events[0][1]["other_share"] < 0.6
