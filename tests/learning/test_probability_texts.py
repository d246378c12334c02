"""Check that probabilities become JSON whatever the labels and the numbers are."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.learning.decoding.jsonrows import text
from indb_tensile.learning.evaluation.probability_texts import probability_texts

_LABELS = st.text() | st.sampled_from(["a:nan", "%s", "topic:nano", '"'])


@given(
    st.lists(_LABELS, min_size=1, max_size=4, unique=True), st.lists(st.floats(0, 1) | st.just(math.nan), min_size=4)
)
def test_each_row_is_an_object_of_its_numbers(labels: list[str], chances: list[float]) -> None:
    matrix = np.resize(np.array(chances), (3, len(labels)))
    rows = [json.loads(row) for row in probability_texts(labels, matrix)]
    expected = [["NaN" if math.isnan(chance) else chance for chance in row] for row in matrix.tolist()]
    assert [list(row.values()) for row in rows] == expected
    assert [list(row) for row in rows] == [labels] * 3


def test_characters_that_no_text_of_postgresql_can_have_are_replaced() -> None:
    assert text("c", json.loads('"a\\u0000b\\ud800 \\ud83d\\ude00"')) == "a\ufffdb\ufffd 😀"
