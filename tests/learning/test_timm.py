"""Networks of timm learn from images by name, without its weights, and predict as the stored version says.

The tests that build a network need the extra `timm`, which the suite's environment does not have. tests/nightly.sh
installs it apart and runs them.
"""

from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch

from indb_tensile.bench.harness.exactness.timm_networks import missing_package
from indb_tensile.errors import RequestError, UnsupportedError
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks.architectures import build
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning import pictures, tables
from tests.learning.test_images import photos, prepared

MISSING = missing_package()
needs_timm = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed: it is in the extra `timm`")
SMALL = ("test_resnet", "test_vit", "test_efficientnet", "test_convnext")  # timm's own networks for tests


def job(name: str, side: int = 32, rows: int = 40, epochs: int = 1, **architecture: Any) -> Prepared:
    """Prepare a training of the network on images of this side."""
    declared = {"type": "timm", "name": name, **architecture}
    hyperparams = {"epochs": epochs, "batch_size": 16, "learning_rate": 0.002}
    return prepared(photos(rows, side=side), architecture=declared, hyperparams=hyperparams)


@pytest.mark.skipif(MISSING is None, reason="timm is installed")
def test_a_training_without_timm_names_the_package_and_the_command() -> None:
    with pytest.raises(UnsupportedError, match="architecture timm needs the package timm, which is not installed"):
        job("resnet18")
    with pytest.raises(UnsupportedError) as refused:
        build({"type": "timm", "name": "resnet18"}, (3, 32, 32), 4)
    assert refused.value.hint == "On the machines of controllers and services: pip install 'indb-tensile[timm]'"


@needs_timm
@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALL)
def test_a_network_learns_and_its_stored_version_predicts_the_same(name: str) -> None:
    ready = job(name, rows=120, epochs=8)
    tables.train(ready)
    model = tables.bundle(ready)
    loaded = ModelPredictor.load(model.to_json(), model.to_bytes())
    stored = model.to_json()["architecture"]
    assert stored == {"type": "timm", "name": name, "library_version": version("timm")}
    shown = photos(16, side=40).columns
    labels = [each.label for each in loaded.predict_columns(shown)]
    right = sum(label == f"corner {row % 4}" for row, label in enumerate(labels))
    assert right >= 15 or name == "test_vit"  # attention of a class token needs many more images
    x = ready.preprocessor.transform(shown)
    with torch.inference_mode():
        expected = ready.module.eval()(torch.from_numpy(x)).numpy()
    assert np.array_equal(loaded.outputs(x), expected)
    assert loaded.embeddings(x[:3]).shape[0] == 3


@needs_timm
@pytest.mark.nightly
@pytest.mark.parametrize("name", [*SMALL, "swin_tiny_patch4_window7_224"])  # swin has buffers that no version stores
def test_equal_seeds_give_equal_weights_and_the_global_random_state_stays(name: str) -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        return dict(build({"type": "timm", "name": name}, (3, 64, 64), 4, seed=seed).state_dict())

    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, second, other = weights(1), weights(1), weights(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)
    assert all(tensor.isfinite().all() for tensor in first.values())


@needs_timm
@pytest.mark.nightly
def test_buffers_that_no_version_stores_are_computed_again() -> None:
    network = build({"type": "timm", "name": "swin_tiny_patch4_window7_224"}, (3, 64, 64), 4)
    again = build({"type": "timm", "name": "swin_tiny_patch4_window7_224"}, (3, 64, 64), 4, seed=5)
    again.load_state_dict(network.state_dict())
    x = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(network.eval()(x), again.eval()(x))


@needs_timm
@pytest.mark.nightly
def test_an_ensemble_of_networks_and_arrays_of_an_images_shape_are_accepted() -> None:
    own = {"type": "timm", "name": "test_resnet"}
    ready = prepared(photos(), architecture=own, hyperparams={"ensemble": 2, "epochs": 1})
    assert ready.module.eval()(ready.train.first(2)).shape == (2, 4)
    tables.train(ready)
    assert ModelPredictor(tables.bundle(ready)).predict_columns(photos(2).columns)[0].label is not None
    flat = [(*(float((row * place) % 5) for place in range(64)), row % 2 == 0) for row in range(20)]
    names = [*((f"p{place}", "double precision") for place in range(64)), ("y", "boolean")]
    folded = own | {"input_shape": [1, 8, 8]}
    of_numbers = assemble(tables.table(names, flat), tables.spec("y", architecture=folded))
    assert of_numbers.module(of_numbers.train.first(3)).shape == (3, 2)


@needs_timm
@pytest.mark.nightly
def test_an_image_that_cannot_be_read_gives_no_number() -> None:
    rows = [{"photo": pictures.as_hex(pictures.encoded(pictures.square(0)))}, {"photo": "\\x00"}]
    for name in SMALL:
        own = {"type": "timm", "name": name}
        ready = prepared(photos(), preprocess={"on_error": "skip", "size": [32, 32]}, architecture=own)
        outputs = ModelPredictor(tables.bundle(ready)).outputs(ready.preprocessor.transform_rows(rows))
        assert np.isnan(outputs).all(axis=1).tolist() == [False, True]


@needs_timm
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "side", "own", "message", "hint"),
    [
        ("resnet19", 32, {}, 'has no network "resnet19"', 'Did you mean "resnet10t"?|Did you mean "resnet18"?'),
        ("vit_tiny_patch16_224", 30, {}, "reads patches of 16 x 16 pixels, and the images have 30 x 30", "[32, 32]"),
        ("inception_v4", 32, {}, "does not take images of 32 x 32 with 1 channel", '"size": [299, 299]'),
        (
            "vgg11",
            32,
            {"drop_path_rate": 0.1},
            'network "vgg11" has no "drop_path_rate"',
            'Leave "drop_path_rate" out',
        ),
    ],
)
def test_what_timm_or_a_network_does_not_have_is_refused(
    name: str, side: int, own: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        job(name, side=side, **own)
    assert any(part in refused.value.hint for part in hint.split("|")), refused.value.hint


@needs_timm
@pytest.mark.nightly
def test_a_version_that_another_timm_trained_is_not_loaded() -> None:
    model = tables.bundle(job("test_resnet"))
    stored = model.to_json()
    stored["architecture"]["library_version"] = "0.9.16"
    with pytest.raises(UnsupportedError, match=r"trained with timm 0\.9\.16, and timm .* is installed here"):
        ModelPredictor.load(stored, model.to_bytes())
