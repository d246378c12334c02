"""Texts and sets of labels become numbers as `encode` and `missing` say."""

import numpy as np
import pytest

from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.encoding.targets import fit_target
from indb_tensile.learning.encoding.text_encoders import Goal, Hashed, LabelSets, TargetMeans
from indb_tensile.learning.storage.columns import ColumnKind, ColumnRows
from indb_tensile.learning.storage.moments import Matrix
from indb_tensile.learning.storage.row_storage import row_blocks
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.preprocessor_fitting import fit
from tests.learning.tables import spec, table

TEXTS = ["m", "s", None, "l", "s", "x"]


def _fitted(texts: list[str | None], options: dict[str, object]) -> Preprocessor:
    rows = len(texts)
    columns = {
        "w": column_of("w", ColumnKind.TEXT, texts),
        "y": column_of("y", ColumnKind.INTEGER, [row % 2 for row in range(rows)]),
    }
    target = fit_target("y", Task.CLASSIFICATION, columns["y"], np.arange(rows))
    return fit(columns, target=target, features=["w"], options=FeatureOptions.parse(options), train=np.arange(rows))


@pytest.mark.parametrize(
    ("options", "outputs", "encoded"),
    [
        (
            {"encode": {"w": ["s", "m", "l"]}},
            ("w place", "w (other)"),
            [[0, 0], [-1, 0], [0, 1], [1, 0], [-1, 0], [0, 1]],
        ),
        (
            {"encode": "ordinal", "missing": {"w": "most_frequent"}},  # l, m, s, x
            ("w place", "w (other)"),
            [[-1 / 3, 0], [1 / 3, 0], [1 / 3, 0], [-1, 0], [1 / 3, 0], [1, 0]],
        ),
        (
            {"missing": {"w": {"constant": "l"}}, "categories": 2},
            ("w = l", "w = s", "w = (other)", "w = (missing)"),
            [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]],
        ),
    ],
)
def test_texts_are_encoded_and_replaced_as_the_options_say(
    options: dict[str, object], outputs: tuple[str, ...], encoded: list[list[float]]
) -> None:
    fitted = _fitted(TEXTS, options)
    assert fitted.outputs == outputs
    np.testing.assert_allclose(fitted.transform_rows([{"w": text} for text in TEXTS]), encoded, rtol=1e-6)
    stored = Preprocessor.from_json(fitted.to_json())
    assert stored.transform_rows([[text] for text in TEXTS]).tolist() == fitted.transform_rows(TEXTS).tolist()


def test_a_hash_keeps_no_text_and_puts_equal_texts_into_one_of_its_columns() -> None:
    fitted = _fitted(["secret", "other", None, "secret  "], {"encode": "hash", "categories": 8})
    encoded = fitted.transform_rows([["secret"], ["secret  "], [None], ["never seen"]])
    assert encoded.sum(axis=1).tolist() == [1.0, 1.0, 1.0, 1.0]
    assert encoded[0].tolist() == encoded[1].tolist()
    assert encoded[2].tolist() == [0.0] * 8 + [1.0]
    assert "secret" not in str(fitted.to_json())
    assert fitted.recipe.hashed == (Hashed(name="w", buckets=8),)


def test_the_mean_of_a_training_row_does_not_depend_on_its_own_target() -> None:
    texts = column_of("w", ColumnKind.TEXT, [f"v{row % 4}" for row in range(40)])
    goal = np.random.default_rng(5).random((40, 1))
    learned = ColumnRows(texts, np.arange(40))
    encoder, _, of_training = TargetMeans.fit("w", learned, 100, "mean", _goal(goal))
    for row in range(40):
        changed = goal.copy()
        changed[row] += 100.0
        _, _, again = TargetMeans.fit("w", learned, 100, "mean", _goal(changed))
        assert again[row] == pytest.approx(of_training[row])
    rows = column_of("w", ColumnKind.TEXT, ["v0", "never seen", None])
    own = (goal[::4].sum() + 10 * goal.mean()) / 20
    assert encoder.apply(rows)[:, 0] == pytest.approx([own, goal.mean(), goal.mean()])


def _goal(values: Matrix) -> Goal:
    return Goal(values.shape[1], lambda rows: (values[start:end] for start, end in row_blocks(len(values), rows)))


def test_training_rows_get_their_means_out_of_fold_and_other_rows_those_of_all() -> None:
    described = [("id", "bigint"), ("w", "text"), ("n", "double precision"), ("y", "bigint")]
    rows = [[row, f"v{row % 5}", float(row % 7), row % 3] for row in range(200)]
    prepared = assemble(table(described, rows), spec("y", preprocess={"encode": {"w": "target"}}))
    means = [place for place, name in enumerate(prepared.preprocessor.outputs) if name.startswith("w mean")]
    assert len(means) == 3  # a column for each class
    encoder = prepared.preprocessor.recipe.target_means[0]
    values = {tuple(row) for row in prepared.test.x[:, means].tolist()}
    assert values <= {tuple(row) for row in np.array(encoder.means, np.float32).tolist()}
    assert len({tuple(row) for row in prepared.train.x[:, means].tolist()}) > len(encoder.means)


def test_labels_are_several_ones_and_an_empty_set_is_not_missing() -> None:
    sets = column_of("t", ColumnKind.LABELS, [["a", "b"], ["b", None, "b"], [], None, [["c"], ["b"]]])
    encoder, facts = LabelSets.fit("t", ColumnRows(sets, np.arange(5)), 2, "mean")
    assert encoder.outputs == ("t has a", "t has b", "t has (other)", "t has (missing)")
    assert encoder.apply(sets).tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 0]]
    assert (facts.distinct, facts.other_rows) == (3, 1)
