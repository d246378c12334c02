"""Test how a search reads what varies, and what it refuses."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import RequestError
from indb_tensile.request.network_rules import check_architecture
from indb_tensile.request.search_rules import (
    DEFAULT_ARCHITECTURE,
    DEFAULT_HYPERPARAMS,
    Dimension,
    adapted,
    check_pruning,
    check_search,
    check_space,
    dimensions,
    first_picks,
    grid,
    pick_from,
    resolve,
    rung_shares,
    variants,
)

SPACE: dict[str, Any] = {
    "architecture": {
        "choices": [
            {"type": "linear"},
            {"type": "mlp", "hidden": [{"choices": [8, 16]}, 4], "dropout": {"range": [0, 0.5]}},
        ]
    },
    "hyperparams": {
        "learning_rate": {"range": [1e-4, 1], "log": True},
        "batch_size": {"range": [16, 64]},
        "epochs": 3,
    },
}


def test_dimensions_have_the_names_of_their_places_and_the_kinds_of_their_parameters() -> None:
    assert dimensions(SPACE) == [
        Dimension(name="architecture", choices=tuple(SPACE["architecture"]["choices"])),
        Dimension(name="architecture[1].hidden[0]", choices=(8, 16)),
        Dimension(name="architecture[1].dropout", low=0, high=0.5),
        Dimension(name="learning_rate", low=1e-4, high=1, log=True),
        Dimension(name="batch_size", low=16, high=64, integer=True),
    ]


def test_picks_are_put_in_place_and_hyperparams_without_effect_are_left_out() -> None:
    picks = {"architecture": 1, "architecture[1].hidden[0]": 1, "architecture[1].dropout": 0.25, "learning_rate": 0.1}
    assert resolve(SPACE, pick_from(picks)) == {
        "architecture": {"type": "mlp", "hidden": [16, 4], "dropout": 0.25},
        "hyperparams": {"learning_rate": 0.1, "batch_size": 16, "epochs": 3},
    }
    assert resolve(SPACE, pick_from({"architecture": 0})) == {"architecture": {"type": "linear"}, "hyperparams": {}}
    assert resolve(SPACE, first_picks)["architecture"] == {"type": "mlp", "hidden": [8, 4], "dropout": 0.0}
    optimizers = {"optimizer": {"choices": ["adam", "sgd"]}, "momentum": 0.9, "betas": [0.9, 0.99]}
    resolved = [resolve({"hyperparams": optimizers}, pick_from({"optimizer": place})) for place in (0, 1)]
    assert [list(own["hyperparams"]) for own in resolved] == [["optimizer", "betas"], ["optimizer", "momentum"]]


def test_variants_have_every_choice_and_both_ends_of_every_range() -> None:
    drawn = [json.dumps(variant) for variant in variants(SPACE)]
    for part in ('"linear"', '"hidden": [8, 4]', '"hidden": [16, 4]', '"dropout": 0.5', '"dropout": 0.0'):
        assert any(part in variant for variant in drawn)
    assert all(check_architecture(variant["architecture"]) for variant in variants(SPACE))


def test_a_grid_has_a_point_for_each_combination_also_of_choices_within_choices() -> None:
    space = {
        "architecture": {"choices": [{"type": "linear"}, {"type": "mlp", "hidden": {"choices": [[4], [8]]}}]},
        "hyperparams": {"batch_size": {"range": [16, 48], "step": 16}},
    }
    points = list(grid(space))
    assert len(points) == 1 + 2 * 3  # the linear model takes no batch size
    assert points[0] == {"architecture": 0, "batch_size": 16}
    assert points[-1] == {"architecture": 1, "architecture[1].hidden": 1, "batch_size": 48}
    assert check_search({"sampler": "grid"}, space)["trials"] == 7
    assert check_search({"sampler": "grid", "trials": 4}, space)["trials"] == 4


def test_the_options_have_defaults_and_the_rungs_grow_by_the_factor() -> None:
    assert check_search({}, SPACE) == {
        "trials": 16,
        "parallel": 4,
        "sampler": "tpe",
        "prune": {"type": "asha", "factor": 3, "rungs": 3},
        "search_seed": 0,
        "max_duration_s": None,
    }
    assert rung_shares(check_pruning({"type": "halving", "factor": 4, "rungs": 3})) == (1 / 16, 1 / 4, 1.0)
    assert rung_shares(check_pruning("none")) == (1.0,)


def test_the_default_space_is_one_that_a_training_takes() -> None:
    space = {"architecture": DEFAULT_ARCHITECTURE, "hyperparams": DEFAULT_HYPERPARAMS}
    assert all(check_architecture(variant["architecture"]) for variant in variants(check_space(space)))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"range": [2, 1]}, "learning_rate: the range is [2, 1]"),
        ({"range": [1]}, "learning_rate: the range is [1]"),
        ({"range": ["a", "b"]}, 'learning_rate: the range is ["a", "b"]'),
        ({"range": [0, 1], "log": True}, "learning_rate: a logarithmic range begins at 0"),
        ({"range": [1, 2], "log": "yes"}, 'learning_rate: "log" is "yes"'),
        ({"range": [1, 2], "step": 0}, 'learning_rate: "step" is 0'),
        ({"range": [1, 2], "step": 1, "log": True}, 'learning_rate: "step" means nothing on a logarithmic scale'),
        ({"range": [1, 2], "step": 3}, 'learning_rate: "step" is 3, and the range is [1, 2]'),
        ({"range": [0, 1], "step": 1e-300}, 'learning_rate: "step" is 1e-300, and the range is [0, 1]'),
        ({"range": [1, 2], "logs": True}, 'learning_rate: "logs" is no key beside "range"'),
        ({"range": [1, 2], "choices": [1]}, 'learning_rate: "range" is no key beside "choices"'),
        ({"choices": 0.1}, 'learning_rate: "choices" is 0.1, not a list'),
        ({"choices": []}, "learning_rate: the list of choices is empty"),
    ],
)
def test_a_dimension_that_is_not_well_formed_is_refused(space: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        check_space({"hyperparams": {"learning_rate": space}})
    assert refusal.value.message == message
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, 'search: "trials" is 0'),
        ({"trials": 1001}, 'search: "trials" is 1001'),
        ({"parallel": 65}, 'search: "parallel" is 65'),
        ({"sampler": "best"}, 'search: "sampler" is "best"'),
        ({"search_seed": -1}, 'search: "search_seed" is -1'),
        ({"max_duration_s": 0}, 'search: "max_duration_s" is 0'),
        ({"prune": "median"}, 'unknown prune "median"'),
        ({"prune": {"type": "asha", "factor": 1}}, 'prune asha: "factor" is 1'),
        ({"prune": {"type": "none", "rungs": 2}}, 'prune none: unknown parameter "rungs"'),
        ({"sampler": "grid"}, "the values of learning_rate are not countable"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        check_search(options, SPACE)
    assert refusal.value.message == message
    assert refusal.value.hint


@pytest.mark.nightly
def test_a_large_grid_and_too_many_dimensions_are_refused() -> None:
    names = {f"p{number}": {"choices": [1, 2]} for number in range(101)}
    with pytest.raises(RequestError, match="the grid has more than 1000 points"):
        check_search({"sampler": "grid"}, {"hyperparams": names})
    with pytest.raises(RequestError, match="101 arguments that vary"):
        check_space({"hyperparams": names})
    with pytest.raises(RequestError, match="1001 choices, more than 1000"):
        check_space({"hyperparams": {"seed": {"choices": list(range(1001))}}})
    with pytest.raises(RequestError, match="bytes, more than 32768"):
        check_space({"preprocess": {"missing": dict.fromkeys(map(str, range(5000)), "mean")}})


def test_a_grid_has_no_two_points_with_the_same_arguments_and_any_number_of_fixed_ones() -> None:
    optimizers = {"optimizer": {"choices": ["adam", "sgd"]}, "momentum": {"choices": [0.5, 0.9]}}
    fixed = {"missing": dict.fromkeys(map(str, range(1500)), "mean")}
    points = list(grid({"hyperparams": optimizers, "preprocess": fixed}))
    assert points == [
        {"optimizer": 0, "momentum": 0},
        {"optimizer": 1, "momentum": 0},
        {"optimizer": 1, "momentum": 1},
    ]


def test_names_of_columns_and_classes_are_no_dimensions() -> None:
    space = {
        "preprocess": {"missing": {"range": "mean", "choices": "median"}},
        "hyperparams": {"class_weight": {"range": 2.0, "choices": 1}},
    }
    assert dimensions(space) == []


def test_arguments_of_networks_are_left_out_of_other_trials_if_the_architecture_varies() -> None:
    inherited = {"hyperparams": {"epochs": 3, "seed": 4}, "early_stop": {"patience": 3}, "memory_limit_bytes": 9}
    network, linear = ({"architecture": {"type": kind}} | inherited for kind in ("mlp", "linear"))
    assert adapted(network, SPACE) == network
    assert adapted(linear, SPACE) == linear | {
        "hyperparams": {"seed": 4},
        "early_stop": None,
        "memory_limit_bytes": None,
    }
    assert adapted(linear, {"hyperparams": {}}) == linear


values = st.recursive(
    st.integers(-5, 5) | st.booleans() | st.sampled_from(["a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "x", "y"]), inner, max_size=3)
        | st.builds(lambda choices: {"choices": choices}, st.lists(inner, min_size=1, max_size=3))
        | st.just({"range": [1, 3]})
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["preprocess", "architecture"]), values, max_size=2), st.randoms())
def test_resolved_arguments_have_no_dimension_and_grid_points_name_those_that_exist(space: Any, random: Any) -> None:
    picked = {}

    def pick(dimension: Dimension) -> Any:
        picked[dimension.name] = random.choice(dimension.picks)
        return picked[dimension.name]

    resolved = resolve(space, pick)
    assert dimensions(resolved) == []
    assert resolve(space, pick_from(picked)) == resolved
    names = [dimension.name for dimension in dimensions(space)]
    assert len(names) == len(set(names))
    assert picked.keys() <= set(names)
    if len(names) <= 4:
        points = list(grid(space))
        assert resolved in [resolve(space, pick_from(point)) for point in points]
        assert len(points) == len({json.dumps(resolve(space, pick_from(point)), sort_keys=True) for point in points})
