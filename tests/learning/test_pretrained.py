"""Registered networks read texts in trainings, which train and store no more than was asked for."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from indb_tensile.bench.harness.networks.tiny_networks import tiny_network
from indb_tensile.errors import DatabaseError, RequestError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks.architectures import stored_names
from indb_tensile.learning.networks.hyperparams import settings_of
from indb_tensile.learning.networks.pretrained_vectors import PretrainedVectors
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.learning.training.starting_weights import StartingWeights
from indb_tensile.request.pretrained_rules import FAMILIES
from indb_tensile.scheduler.graph import Role
from tests.learning.tables import bundle, score, spec, train
from tests.learning.test_tokens import ABOUT, descriptions

WORDS = (*ABOUT["yes"], *ABOUT["no"], "the", "a", "of")
BY_DAY = [pytest.param(name, marks=[] if name in ("roberta", "gpt2") else [pytest.mark.nightly]) for name in FAMILIES]
READ = {"encode": {"body": "tokens", "title": "tokens"}}


@cache
def network(family: str = "bert") -> RegisteredNetwork:
    return tiny_network(family, WORDS)


def prepared(own: RegisteredNetwork | None = None, **architecture: Any) -> Prepared:
    own = own or network()
    declared = {"type": "pretrained", "from": own.name, **architecture}
    wishes = spec("y", architecture=declared, preprocess=READ, hyperparams={"epochs": 8, "learning_rate": 0.02})
    return assemble(descriptions(), wishes, network=own)


def encoder_of(module: torch.nn.Module) -> PretrainedVectors:
    return next(part for part in module.modules() if isinstance(part, PretrainedVectors))


@pytest.mark.parametrize("family", BY_DAY)
def test_vectors_are_those_of_the_library_with_its_own_masks(family: str) -> None:
    own = network(family)
    job = prepared(own, pooling="first")
    vectors = encoder_of(job.module).eval()
    tokens = job.train.x[:8, -sum(vectors.lengths) :][:, : vectors.lengths[0]]
    plain = own.sizes.encoder().eval()
    plain.load_state_dict(own.tensors())
    known = (tokens > 0).long()
    inputs = {"input_ids": (tokens.long() - 1).clamp(min=0), "attention_mask": known}
    start = own.sizes.first_position
    inputs["position_ids"] = torch.arange(start, start + tokens.shape[1]).unsqueeze(0)
    if family in ("bert", "roberta"):
        inputs["token_type_ids"] = torch.zeros_like(known)
    with torch.no_grad():
        expected = plain(**inputs).last_hidden_state[:, 0]
        pooled = vectors(torch.cat([tokens, tokens.new_zeros(8, vectors.lengths[1])], dim=1))[:, 0]
    expected = (expected - vectors.centers[0]) * vectors.scales[0]
    torch.testing.assert_close(pooled, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", BY_DAY)
def test_padding_changes_no_vector(family: str) -> None:
    job = prepared(network(family))
    vectors = encoder_of(job.module).eval()
    tokens = torch.zeros(1, sum(vectors.lengths))
    tokens[0, :4] = torch.tensor([3.0, 7.0, 8.0, 4.0])
    with torch.no_grad():
        padded = vectors(tokens)[0, 0]
        vectors.lengths = [4, sum(vectors.lengths) - 4]
        exact = vectors(tokens)[0, 0]
    torch.testing.assert_close(padded, exact, rtol=1e-5, atol=1e-6)


def test_tokens_are_those_of_the_networks_tokenizer_and_several_columns_share_the_encoder() -> None:
    job = prepared()
    recipe = job.preprocessor.recipe
    assert [part.name for part in recipe.network_tokens] == ["body", "title"]
    numbers = job.preprocessor.transform_rows([{"body": "The QUERY of unknown", "title": None, "n": 0.0}])[0]
    place = {name: number for number, name in enumerate(job.preprocessor.outputs)}
    begin = place["body token 1"]
    vocabulary = {word: 5 + number for number, word in enumerate(WORDS)}
    expected = [2, vocabulary["the"], vocabulary["query"], vocabulary["of"], 1, 3]
    assert numbers[begin : begin + 8].tolist() == [1.0 + number for number in expected] + [0.0, 0.0]
    assert numbers[place["title token 1"] :][:3].tolist() == [3.0, 4.0, 0.0]
    assert sum(isinstance(part, PretrainedVectors) for part in job.module.modules()) == 1


def test_vectors_of_each_column_are_centered_on_the_training_rows_and_scaled_by_one_number() -> None:
    job = prepared()
    vectors = encoder_of(job.module).eval()
    with torch.no_grad():
        of_training = vectors(job.train.x[:, -sum(vectors.lengths) :])
    assert of_training.shape[1:] == (2, 16)
    assert of_training.mean(dim=0).abs().max() < 4 / 16  # of numbers near 4, rounded to a sixteenth
    lengths = of_training.square().sum(dim=2).mean(dim=0).sqrt()
    torch.testing.assert_close(lengths, torch.full((2,), 16.0), rtol=0.05, atol=0)
    assert vectors.scales[0] != vectors.scales[1]
    assert {"embedding.texts.centers", "embedding.texts.scales"} <= set(stored_names(job.module))


def test_a_head_answers_alike_before_it_learns_and_learns_by_sgd_unless_the_request_says_how() -> None:
    def settings(part: str, **hyperparams: Any) -> tuple[str, float]:
        wishes = spec(
            "y", architecture={"type": "pretrained", "from": "bert", "train": part}, hyperparams=hyperparams
        )
        own = settings_of(wishes, wishes.architecture, 100)
        return own.optimizer, own.learning_rate

    assert not prepared().module.eval()(prepared().train.x).any()
    assert settings("head") == ("sgd", 2.5e-3)
    assert settings("head", learning_rate=0.01) == ("adamw", 0.01)
    assert settings("head", betas=[0.9, 0.99]) == ("adamw", 2e-3)
    assert settings("lora") == ("adamw", 1e-3)
    assert settings("all") == ("adamw", 1e-4)
    assert settings("all", optimizer="sgd") == ("sgd", 0.05)


def test_a_column_of_texts_more_gets_its_own_center_and_the_others_keep_theirs() -> None:
    wishes: dict[str, Any] = {"architecture": {"type": "pretrained", "from": "bert"}, "hyperparams": {"epochs": 1}}
    title, both = ({"encode": dict.fromkeys(names, "tokens")} for names in (["title"], ["title", "body"]))
    origin = assemble(descriptions(), spec("y", features=("title",), preprocess=title, **wishes), network=network())
    weights = {name: origin.module.state_dict()[name] for name in stored_names(origin.module)}
    published = replace(bundle(origin), network=network(), weights=weights)
    start = StartingWeights(model="m", version=1, bundle=published)
    more = spec("y", features=("title", "body"), preprocess=both, **wishes)
    again = assemble(descriptions(40), more, start=start, network=network())
    before, after = (encoder_of(job.module) for job in (origin, again))
    assert torch.equal(after.centers[:1], before.centers)
    assert torch.equal(after.scales[:1], before.scales)
    assert after.centers[1].any()


def learns_with(part: str, name: str) -> bool:
    """Return whether a parameter learns if this part of the network is trained."""
    return part == "all" or "encoder" not in name or (part == "lora" and "lora_" in name)


@pytest.mark.by_day("head")
@pytest.mark.parametrize("part", ["head", "lora", "all"])
def test_only_what_was_asked_for_learns_and_is_stored(part: str) -> None:
    job = prepared(train=part)
    before = {name: tensor.clone() for name, tensor in job.module.state_dict().items()}
    learns = {name for name, own in job.module.named_parameters() if own.requires_grad}
    assert learns == {name for name in dict(job.module.named_parameters()) if learns_with(part, name)}
    train(job)
    assert score(job, job.train)["accuracy"] >= (0.6 if part == "head" else 0.9)
    after = job.module.state_dict()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed <= learns
    stored = stored_names(job.module)
    assert {name for name in stored if name in learns} == learns
    if part != "all":
        assert not [name for name in stored if "base_layer" in name or "word_embeddings" in name]


@pytest.mark.by_day("gpt2")
@pytest.mark.parametrize("family", BY_DAY)
def test_published_version_predicts_with_the_network_and_not_without_it(family: str) -> None:
    own = network(family)
    job = prepared(own, train="lora", lora={"r": 2})
    train(job)
    kept = set(stored_names(job.module))
    model = bundle(job)
    published = ModelBundle(
        architecture=model.architecture,
        input_shape=model.input_shape,
        outputs=model.outputs,
        task=model.task,
        preprocessor=model.preprocessor,
        weights={name: tensor for name, tensor in model.weights.items() if name in kept},
        network=own,
    )
    stored, weights = published.to_json(), published.to_bytes()
    assert stored["architecture"]["digest"] == own.digest
    assert len(weights) < len(own.weights) / 2
    row = {"body": "the query of the index", "title": "table", "n": 0.5}
    loaded = ModelPredictor.load(stored, weights, own)
    job.module.eval()
    with torch.no_grad():
        expected = job.module(torch.from_numpy(job.preprocessor.transform_rows([row])))
    np.testing.assert_allclose(loaded.predict_rows([row])[0].vector, expected[0], rtol=1e-5)
    with pytest.raises(RequestError, match='network "' + family + '" is not loaded'):
        ModelPredictor.load(stored, weights)


def captured(job: Prepared) -> CapturedStep:
    return capture_training(
        job.module, job.loss, job.train.x[:16], job.train.y[:16], OptimizerSettings(kind="adamw", weight_decay=0.01)
    )


def bytes_of(step: CapturedStep, *roles: Role) -> int:
    return sum(tensor.size_bytes for tensor in step.graph.tensors if tensor.role in roles)


@pytest.mark.by_day("head")
@pytest.mark.parametrize("part", ["head", "lora"])
def test_frozen_weights_have_no_gradient_and_no_optimizer_state_in_the_graph(part: str) -> None:
    job = prepared(train=part)
    step = captured(job)
    learned = sum(own.numel() for own in job.module.parameters() if own.requires_grad)
    frozen = {name for name, own in job.module.named_parameters() if not own.requires_grad}
    assert bytes_of(step, Role.OPTIMIZER_STATE) == 2 * 4 * learned + 4  # two moments, and the number of steps
    assert bytes_of(step, Role.PARAMETER) == sum(4 * own.numel() for own in job.module.parameters())
    own_ids = {tensor.id for tensor in step.graph.tensors if tensor.name in frozen}
    assert own_ids
    assert not [operator.name for operator in step.graph.operators if own_ids.intersection(operator.writes)]


def test_unknown_layers_of_lora_and_texts_that_are_too_long_are_refused() -> None:
    with pytest.raises(RequestError, match='"targets" names "kueri", and a bert has no such layers') as refused:
        prepared(train="lora", lora={"targets": ["kueri"]})
    assert refused.value.hint == "Name some of query, key, value, dense."
    wishes = spec(
        "y",
        architecture={"type": "pretrained", "from": "bert"},
        preprocess=READ | {"length": {"body": 41}},
    )
    with pytest.raises(RequestError, match='"length" of column "body" is 41, and network "bert" reads 40 tokens'):
        assemble(descriptions(), wishes, network=network())


def test_network_without_a_column_of_tokens_is_refused() -> None:
    wishes = spec("y", architecture={"type": "pretrained", "from": "bert"}, preprocess={}, features=("n",))
    with pytest.raises(RequestError, match="no column is read as tokens"):
        assemble(descriptions(), wishes, network=network())


def test_changed_weights_in_the_catalog_are_told() -> None:
    own = network()
    changed = bytearray(own.weights)
    changed[-1] ^= 1
    config = {**own.sizes.stored(), "family": own.sizes.family}
    with pytest.raises(DatabaseError, match="is not the one that was registered"):
        RegisteredNetwork.of_stored(own.name, own.digest, config, own.tokenizer_text, bytes(changed))
    same = RegisteredNetwork.of_stored(own.name, own.digest, config, own.tokenizer_text, own.weights)
    assert same.sizes == own.sizes
