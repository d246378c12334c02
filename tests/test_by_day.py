"""Cases that `by_day` does not name run at night, and a word without a case is an error."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.nightly import leave_cases_to_the_night


class Case:
    """As much of a collected test as the marks need."""

    def __init__(self, case: str, *words: str) -> None:
        self.nodeid = f"tests/test_x.py::test_y[{case}]"
        self.words = words
        self.marks: list[str] = []

    def get_closest_marker(self, _: str) -> Any:
        return SimpleNamespace(args=self.words) if self.words else None

    def add_marker(self, mark: str) -> None:
        self.marks.append(mark)


def leave(*cases: Case, all_cases: bool = True) -> list[list[str]]:
    items: Any = cases
    leave_cases_to_the_night(items, all_cases=all_cases)
    return [case.marks for case in cases]


def test_cases_without_one_of_the_words_run_at_night() -> None:
    words = ("cnn", "lstm-adam")
    cases = [Case(case, *words) for case in ("cnn-sgd", "mlp-adam", "lstm-adam", "lstm-sgd")]
    assert leave(*cases) == [[], ["nightly"], [], ["nightly"]]
    assert leave(Case("mlp"), Case("cnn")) == [[], []]


def test_a_word_that_is_in_no_case_is_an_error_unless_cases_were_chosen() -> None:
    cases = [Case("cnn", "cnn", "vit"), Case("mlp", "cnn", "vit")]
    with pytest.raises(pytest.UsageError, match=r"test_y: by_day names \['vit'\], and no case has that"):
        leave(*cases)
    assert leave(Case("cnn", "cnn", "vit"), all_cases=False) == [[]]
