"""The embedding of a row is what the last layer of each network makes its outputs from."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from indb_tensile.errors import RequestError
from indb_tensile.learning.networks import architectures, hidden_rows
from indb_tensile.learning.networks.hidden_rows import HiddenRows

NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [7, 5]},
    "residual_mlp": {"width": 6, "blocks": 1},
    "ft_transformer": {"heads": 2, "blocks": 1, "embedding_width": 4},
    "dcn": {"hidden": [4], "crosses": 1},
    "layers": {"layers": [{"type": "linear", "out": 5}, {"type": "relu"}, {"type": "linear"}]},
}
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def built(kind: str, ensemble: int = 1, **values: Any) -> nn.Module:
    return architectures.build({"type": kind, **values}, (4,), 3, ensemble=ensemble).eval()


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_last_layer_of_the_embeddings_gives_the_outputs(kind: str) -> None:
    module = built(kind, **NETWORKS[kind])
    last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
    with torch.inference_mode():
        expected = module(torch.from_numpy(X))
        hidden = HiddenRows(module, (4,))(X)
        assert hidden.shape == (6, last.in_features)
        assert torch.allclose(last(torch.from_numpy(hidden)), expected, atol=1e-6)


def test_the_members_of_an_ensemble_follow_one_another_and_those_of_tabm_have_a_mean() -> None:
    ensemble = built("mlp", 2, hidden=[5])
    assert HiddenRows(ensemble, (4,))(X).shape == (6, 10)
    first, second = (HiddenRows(member, (4,))(X) for member in ensemble.members)  # type: ignore[union-attr]
    assert np.array_equal(HiddenRows(ensemble, (4,))(X), np.hstack([first, second]))
    assert HiddenRows(built("tabm", members=3, hidden=[5]), (4,))(X).shape == (6, 5)


def test_networks_without_weights_or_with_too_wide_a_layer_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="no layer with weights"):
        HiddenRows(nn.Sequential(nn.Flatten()), (4,))
    monkeypatch.setattr(hidden_rows, "MOST_NUMBERS", 4)
    with pytest.raises(RequestError, match="has 5 numbers, more than 4"):
        HiddenRows(built("mlp", hidden=[5]), (4,))(X)
