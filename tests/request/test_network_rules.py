"""Architectures and layers are refused by name and place, before anything is enqueued or built."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile import sql_api
from indb_tensile.errors import RequestError
from indb_tensile.learning.networks.architectures import build_without_memory
from indb_tensile.request.network_rules import DEEPEST_LAYERS, LAYERS, check_architecture, check_layers
from tests.sql_api.fakes import plpy_with

VALUES = st.one_of(
    st.sampled_from([None, 0, 1, 2, 0.5, True, False, "last", "sequence", "all", 65536, 65537, -1, [1], [2, -1], []]),
    st.integers(-2, 100),
)
LAYER = st.deferred(
    lambda: st.sampled_from([*LAYERS, "dense"]).flatmap(
        lambda kind: st.dictionaries(st.sampled_from([*LAYERS.get(kind, {}), "trainable"]), VALUES, max_size=4).map(
            lambda parameters: {"type": kind} | parameters
        )
    )
)
NESTED = st.recursive(
    LAYER,
    lambda inner: st.lists(inner, max_size=3).map(lambda layers: {"type": "residual", "layers": layers}),
    max_leaves=6,
)


@given(st.lists(NESTED, min_size=1, max_size=4))
def test_any_list_of_layers_is_built_or_refused(layers: list[dict[str, Any]]) -> None:
    with suppress(RequestError):  # and no other exception, such as one of torch or a KeyError
        build_without_memory({"type": "layers", "layers": layers}, (6, 4), 2)


def test_residual_layers_may_be_nested_to_a_limit() -> None:
    layer: dict[str, Any] = {"type": "relu"}
    for _ in range(DEEPEST_LAYERS):
        layer = {"type": "residual", "layers": [layer]}
    check_layers([layer])
    with pytest.raises(RequestError, match="nests residual layers more than 8 deep"):
        check_layers([{"type": "residual", "layers": [layer]}])


def test_dropout_of_a_single_recurrent_layer_is_refused() -> None:
    with pytest.raises(RequestError, match=r'layer 0 \(lstm\): "dropout" acts between layers, and there is one'):
        check_architecture({"type": "layers", "layers": [{"type": "lstm", "hidden": 4, "dropout": 0.5}]})


@pytest.mark.parametrize(
    ("layer", "message", "hint"),
    [
        (
            {"type": "linear", "trainable": False},
            'architecture: layer 0 (linear): unknown parameter "trainable"',
            "Known parameters: out, bias.",
        ),
        (
            {"type": "residual", "layers": [{"type": "relu"}, {"type": "conv2d"}]},
            'architecture: layer 0. 1 (conv2d): parameter "out" is missing',
            "Give an integer at least 1 and at most 65536.",
        ),
        (
            {"type": "dense"},
            'architecture: layer 0 is {"type": "dense"}, whose type is not known',
            f"Known types: {', '.join(LAYERS)}.",
        ),
    ],
)
def test_invalid_layer_is_refused_with_its_position_and_a_hint(layer: Any, message: str, hint: str) -> None:
    request = {"model": "m", "relation": 5, "architecture": json.dumps({"type": "layers", "layers": [layer]})}
    error = sql_api.handle(plpy_with(), "train", request)["error"]
    assert (error["sqlstate"], error["message"], error["hint"]) == ("22023", message, hint)


@pytest.mark.parametrize("architecture", ["[]", '{"type": "layers", "layers": []}'])
def test_empty_list_of_layers_is_refused(architecture: str) -> None:
    error = sql_api.handle(plpy_with(), "train", {"model": "m", "relation": 5, "architecture": architecture})["error"]
    assert error["message"] == "architecture: the list of layers is empty"


def test_list_of_layers_is_an_architecture() -> None:
    plpy = plpy_with()
    architecture = '[{"type": "linear", "out": 8}, {"type": "linear"}]'
    assert sql_api.handle(plpy, "train", {"model": "m", "relation": 5, "architecture": architecture})["ok"]
    spec = json.loads(str(plpy.executed[-1][1][4]))
    assert spec["architecture"] == {"type": "layers", "layers": json.loads(architecture)}
