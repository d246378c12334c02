"""Named parameters are checked against their rules, and defaults are filled in."""

from contextlib import nullcontext
from typing import Any

import pytest

from indb_tensile.errors import RequestError
from indb_tensile.request.hyperparam_rules import HYPERPARAMS
from indb_tensile.request.network_rules import ARCHITECTURES
from indb_tensile.request.parameter_rules import Rule, check_parameters, fill_defaults


@pytest.mark.parametrize(
    ("argument", "fits"),
    [
        ({"epochs": 1}, True),
        ({"epochs": 0}, False),
        ({"epochs": True}, False),
        ({"epochs": 1.0}, False),
        ({"epochs": "1"}, False),
        ({"epochs": 100_001}, False),
        ({"epochs": None}, True),
        ({"clip_norm": 10**308}, True),
        ({"clip_norm": 10**309}, False),
        ({"betas": [0.9, 0.99]}, True),
        ({"betas": [0.9]}, False),
        ({"betas": [0.9, 1]}, False),
        ({"betas": [0.9, True]}, False),
        ({"nesterov": 1}, False),
        ({"nesterov": True}, True),
        ({"learning_rate": 0}, False),
        ({"learning_rate": 1}, True),
        ([], False),
        ("epochs", False),
    ],
)
def test_names_types_and_ranges_are_checked(argument: Any, fits: bool) -> None:
    with nullcontext() if fits else pytest.raises(RequestError):
        check_parameters("hyperparams", argument, HYPERPARAMS)


def test_nulls_are_left_out_and_a_missing_parameter_is_named() -> None:
    assert check_parameters("hyperparams", {"epochs": 2, "eps": None}, HYPERPARAMS) == {"epochs": 2}
    with pytest.raises(RequestError) as caught:
        check_parameters("architecture layers", {}, ARCHITECTURES["layers"])
    error = caught.value
    assert (error.sqlstate, error.message) == ("22023", 'architecture layers: parameter "layers" is missing')
    assert (error.detail, error.hint) == ("", "Give a list of JSON objects.")
    with pytest.raises(RequestError) as caught:
        check_parameters("architecture pretrained", {}, ARCHITECTURES["pretrained"])
    assert caught.value.hint == "Give a text. It is a network of: select network from tensile.network_list;"


def test_every_parameter_left_out_has_its_default_and_numbers_are_floats() -> None:
    known: dict[str, Rule] = {
        "share": {"type": "number", "default": None},
        "rate": {"type": "number", "default": 1},
        "sizes": {"type": "integers", "default": [1, 2]},
        "shares": {"type": "numbers", "default": [0, 1]},
        "units": {"type": "integer"},
    }
    assert fill_defaults({"units": 3, "share": 1, "rate": None}, known) == {
        "share": 1.0,
        "rate": 1.0,
        "sizes": (1, 2),
        "shares": (0.0, 1.0),
        "units": 3,
    }
    betas = fill_defaults({"betas": [0, 0.5]}, HYPERPARAMS)["betas"]
    assert [type(beta) for beta in betas] == [float, float]
    assert fill_defaults({}, HYPERPARAMS).keys() == HYPERPARAMS.keys()
