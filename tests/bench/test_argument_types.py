"""Command-line arguments are checked for their ranges."""

import argparse

import pytest

from indb_tensile.bench.harness.processes.argument_types import number, portion, whole


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--batch", type=whole())
    parser.add_argument("--kills", type=whole(0))
    parser.add_argument("--budgets", type=portion, nargs="+")
    parser.add_argument("--load", type=number(0.5))
    return parser


def test_arguments_in_range_become_numbers() -> None:
    options = _parser().parse_args(["--batch", "3", "--kills", "0", "--budgets", "0", "0.25", "1", "--load", "0.5"])
    assert vars(options) == {"batch": 3, "kills": 0, "budgets": [0.0, 0.25, 1.0], "load": 0.5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", "0"), "argument --batch: '0' is no whole number from 1 on"),
        (("--batch=-3",), "argument --batch: '-3' is no whole number from 1 on"),
        (("--kills", "many"), "argument --kills: 'many' is no whole number from 0 on"),
        (("--budgets", "0.5", "nan"), "argument --budgets: 'nan' is no share: a number from 0 to 1 is needed"),
        (("--load", "0.4"), "argument --load: '0.4' is no number from 0.5 on"),
        (("--load", "inf"), "argument --load: 'inf' is no number from 0.5 on"),
        (("--load", "much"), "argument --load: 'much' is no number from 0.5 on"),
        (("--budgets", "1.5"), "argument --budgets: '1.5' is no share: a number from 0 to 1 is needed"),
    ],
)
def test_arguments_out_of_range_are_refused_with_the_options_name(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=message):
        _parser().parse_args(arguments)
