"""Check that the bridge refuses lists of layers exactly if a worker refuses them before it builds the network."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile import sql_api
from indb_tensile.errors import RequestError
from indb_tensile.learning import layers as learning
from indb_tensile.sql_api import options
from indb_tensile.sql_api.errors import RefusalError
from indb_tensile.sql_api.layers import check_layers
from tests.sql_api.fakes import plpy_with

VALUES = st.one_of(
    st.sampled_from([None, 0, 1, 2, 0.5, True, False, "last", "sequence", "all", 65536, 65537, -1, [1], [2, -1], []]),
    st.integers(-2, 100),
)
LAYER = st.deferred(
    lambda: st.sampled_from([*options.LAYERS, "dense"]).flatmap(
        lambda kind: st.dictionaries(
            st.sampled_from([*options.LAYERS.get(kind, {}), "trainable"]), VALUES, max_size=4
        ).map(lambda parameters: {"type": kind} | parameters)
    )
)
NESTED = st.recursive(
    LAYER,
    lambda inner: st.lists(inner, max_size=3).map(lambda layers: {"type": "residual", "layers": layers}),
    max_leaves=6,
)


@given(st.lists(NESTED, min_size=1, max_size=4))
def test_list_of_layers_is_refused_exactly_if_learning_refuses_it(layers: list[dict[str, Any]]) -> None:
    try:
        learning.check_layers(layers)
        valid = not any(_drops_between_one_layer(layer) for layer in layers)
    except RequestError:
        valid = False
    if valid:
        check_layers(layers)
    else:
        with pytest.raises(RefusalError):
            check_layers(layers)


def _drops_between_one_layer(layer: dict[str, Any]) -> bool:
    """Return whether the layer has a dropout between layers but only one layer, which a worker refuses."""
    if layer["type"] == "residual":
        return any(_drops_between_one_layer(inner) for inner in layer["layers"])
    recurrent = layer["type"] in ("lstm", "gru")
    return recurrent and bool(layer.get("dropout")) and (layer.get("layers") or 1) == 1


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
            f"Known types: {', '.join(options.LAYERS)}.",
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
