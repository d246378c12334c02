"""The benchmark of texts reads packages as apt prints them, and scores every method on the same rows."""

from pathlib import Path

import pytest

from indb_tensile.bench.commands.text import METHODS, compare_buckets, drawn, measure, shuffled_words, tokenise
from indb_tensile.bench.harness.tables.debian_dependencies import parse_dependencies
from indb_tensile.bench.harness.tables.debian_descriptions import parse_packages, section_table
from indb_tensile.bench.harness.tables.stored_texts import stored_section_table

PACKAGES = """\
Package: zsh
Description: shell with lots of features
 Zsh is a shell.
 .
Section: shells

Package: without-section
Description: nothing

Package: other
Section: contrib/libs
Description-en: a library
"""
TABLE = section_table(
    (f"{('a shell of users', 'a library of codecs')[row % 2]} {row % 9}", ("shells", "libs")[row % 2])
    for row in range(120)
)


def test_packages_without_a_description_or_a_section_are_left_out() -> None:
    assert list(parse_packages(PACKAGES.splitlines())) == [
        ("shell with lots of features\nZsh is a shell.\n.", "shells"),
        ("a library", "libs"),
    ]


@pytest.mark.nightly  # trainings of three methods
def test_every_method_is_scored_on_the_same_rows() -> None:
    scores = list(measure(drawn(TABLE, 80), ["default", "tfidf"], seeds=1))
    assert [(score.method, score.rows) for score in scores] == [("default", 80), ("tfidf", 80)]
    assert all(score.accuracy > 0.9 for score in scores)
    assert set(METHODS) == {"default", "convolution", "transformer", "tfidf"}


@pytest.mark.nightly  # captures the steps of two trainings
def test_epochs_of_several_lengths_are_compared_with_epochs_of_one() -> None:
    packages = parse_dependencies(
        line
        for row in range(160)
        for line in (
            f"Package: package{row}",
            f"Depends: {', '.join(f'library{need}' for need in range(1 + 20 * (row % 4 == 0)))}",
            f"Description: {('a shell of users', 'a library of codecs')[row % 2]}",
            f"Section: {('shells', 'libs')[row % 2]}",
            "",
        )
    )
    table = section_table((" ".join((own.description, *own.needs)), own.section) for own in packages)
    single, several = compare_buckets(table, "default", 3, epochs=2)
    assert (single.lengths, single.token_share, single.speedup) == ("64", 1.0, 1.0)
    assert several.lengths.endswith(" 64")
    assert several.token_share < 0.7
    assert several.rows == single.rows


@pytest.mark.parametrize("in_file", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_texts_are_tokenised_and_fed_to_an_epoch(in_file: bool, tmp_path: Path) -> None:
    texts = shuffled_words(TABLE, 300)
    rate = tokenise(stored_section_table(texts, 300, tmp_path) if in_file else section_table(texts))
    assert (rate.rows, rate.texts_per_s > 0, 0 <= rate.waited_share <= 1) == (300, True, True)
