"""Texts become tokens that depend on the texts alone, and networks learn from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import DataError, RequestError
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding import tokens
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.encoding.tokens import MISSING, Tokens
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks.architectures import build
from indb_tensile.learning.storage.columns import ColumnKind, ColumnRows, TableData
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.learning.training.starting_weights import StartingWeights
from indb_tensile.request.network_rules import TABLE_ARCHITECTURES, TEXT_ENCODERS
from tests.learning.tables import bundle, score, spec, table, train
from tests.nightly import nightly_unless

TEXTS = [f"{first} {second}ing, {first}ed" for first in ("read", "paint", "walk") for second in ("sing", "play")]
ABOUT = {"yes": ["server", "query", "index", "table"], "no": ["sound", "music", "player", "codec"]}
WIDE = "".join(chr(ord(letter) + 0xFEE0) for letter in "reading")
READ = {"encode": {"body": "tokens", "title": "tokens"}, "vocabulary": {"body": 320}}


def rows_of(texts: Sequence[str | None]) -> ColumnRows:
    return ColumnRows(column_of("w", ColumnKind.TEXT, list(texts)), np.arange(len(texts)))


def fitted(texts: Sequence[str | None], length: int | None = None, missing: str = "mean") -> Tokens:
    return Tokens.fit("w", rows_of(texts), 300, length, missing)[0]


def descriptions(rows: int = 160) -> TableData:
    """Return texts of two subjects, which decide the label, beside a number; some texts are missing or empty."""
    drawn = np.random.default_rng(3)

    def text(label: str, words: int) -> str:
        return " ".join(drawn.choice([*ABOUT[label], "the", "a", "of"], words))

    listed = []
    for row in range(rows):
        label = ("yes", "no")[row % 2]
        title = None if row % 11 == 0 else text(label, 2)
        listed.append((row, text(label, 1 + row % 12), title, float(drawn.normal()), label))
    return table(
        [("id", "bigint"), ("body", "text"), ("title", "text"), ("n", "double precision"), ("y", "text")], listed
    )


def prepared(architecture: dict[str, Any], **options: Any) -> Prepared:
    settings: dict[str, Any] = {"preprocess": READ, "hyperparams": {"epochs": 2}, **options}
    return assemble(descriptions(), spec("y", architecture=architecture, **settings))


@given(st.permutations(TEXTS))
def test_the_order_of_the_rows_changes_no_token(texts: list[str]) -> None:
    assert fitted(texts) == fitted(TEXTS)


def test_the_number_of_threads_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = fitted(TEXTS)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    assert fitted(TEXTS[::-1]) == alone


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
def test_every_text_has_known_tokens_and_padding_behind_them(texts: list[str]) -> None:
    encoder = fitted(TEXTS, length=16)
    encoded = encoder.apply(column_of("w", ColumnKind.TEXT, texts))
    assert encoded.shape == (len(texts), 16)
    assert ((encoded == 0) | ((encoded > MISSING) & (encoded < encoder.size))).all()
    assert (np.diff((encoded == 0).astype(int), axis=1) >= 0).all()


def test_a_missing_text_differs_from_an_empty_one() -> None:
    encoded = fitted(TEXTS, length=4).apply(column_of("w", ColumnKind.TEXT, [None, ""]))
    assert encoded.tolist() == [[MISSING, 0, 0, 0], [0, 0, 0, 0]]


def test_case_and_width_of_letters_change_no_token() -> None:
    assert _encoded(fitted(TEXTS), ["Reading"]).tolist() == _encoded(fitted(TEXTS), [WIDE]).tolist()


def test_a_missing_text_is_refused_where_one_is_required() -> None:
    with pytest.raises(DataError, match='column "w", row 2: the value is missing'):
        _encoded(fitted(TEXTS, missing="error"), ["read", None])


def test_the_length_holds_nearly_all_texts() -> None:
    words = ["read"] * 96 + ["read " * 100] * 4
    encoder, facts = Tokens.fit("w", rows_of([*words, None]), 300, None, "mean")
    assert (encoder.length, facts.known_rows, facts.whole_rows) == (8, 100, 96)


def test_a_column_without_texts_has_the_bytes_as_tokens() -> None:
    assert (fitted([None, ""]).merges, fitted([None, ""]).size) == ((), 258)


def test_only_some_of_very_many_texts_are_learned_from_whatever_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"word{number % 40} number{number}" for number in range(400)]
    whole = fitted(texts)
    monkeypatch.setattr(tokens, "_LEARNED_CHARACTERS", 2000)
    assert fitted(texts) == fitted(texts[::-1]) != whole


def test_the_tokenizer_is_stored_with_the_model() -> None:
    stored = prepared({"type": "auto"}).preprocessor
    again = Preprocessor.from_json(stored.to_json())
    rows = [{"body": "a server", "title": None, "n": 1.0}, {"body": "", "title": "ü", "n": None}]
    assert again.recipe == stored.recipe
    assert (again.transform_rows(rows) == stored.transform_rows(rows)).all()


def test_auto_reads_several_texts_beside_numbers() -> None:
    job = prepared({"type": "auto"})
    own = job.preprocessor.recipe.tokens
    assert [part.name for part in own] == ["body", "title"]
    assert job.architecture == {
        "type": "wide_and_deep",
        "text_encoder": "pooling",
        "numbers": 1,
        "categories": [],
        "vocabularies": [part.size for part in own],
        "lengths": [part.length for part in own],
    }
    assert job.auto_reason == "a column is read as tokens"
    reported = {(fact.subject, fact.fact): fact.value for fact in job.report if fact.section == "columns"}
    assert reported["body", "encoding"] == f"text: the first {own[0].length} tokens, of {own[0].size} different ones"
    assert reported["body", "read"].endswith("of the texts as a whole")


def test_texts_alone_get_a_linear_model() -> None:
    job = prepared({"type": "auto"}, features=("body", "title"))
    assert (job.architecture["type"], job.architecture["hidden"]) == ("wide_and_deep", [])
    assert job.architecture["text_dropout"] == 0.7
    assert job.auto_reason == "all columns are read as tokens"


@pytest.mark.parametrize("encoder", nightly_unless(lambda encoder: encoder == "pooling", TEXT_ENCODERS))
def test_a_network_learns_from_texts(encoder: str) -> None:
    job = prepared({"type": "wide_and_deep", "text_encoder": encoder, "text_width": 16}, hyperparams={"epochs": 12})
    train(job)
    assert score(job, job.test)["accuracy"] > 0.9
    predictor = ModelPredictor(bundle(job))
    answers = predictor.predict_rows(
        [{"body": f"the {word}s", "title": word, "n": 0.0} for word in ("query", "music")]
    )
    assert [answer.label for answer in answers] == ["yes", "no"]


@pytest.mark.parametrize("kind", TABLE_ARCHITECTURES)
@pytest.mark.parametrize("encoder", TEXT_ENCODERS)
def test_padding_changes_no_answer(kind: str, encoder: str) -> None:
    architecture = {"type": kind, "text_encoder": encoder, "numbers": 1, "categories": [3], "vocabularies": [9, 7]}
    short, long = (
        build(architecture | {"lengths": lengths}, (2 + sum(lengths),), 2).eval() for lengths in ((3, 2), (5, 2))
    )
    weights = short.state_dict()
    grown = {name: _grown(value, long.state_dict()[name]) for name, value in weights.items()}
    long.load_state_dict(grown)
    x = torch.tensor([[0.5, 1, 4, 2, 0, 1, 3], [0.5, 2, 0, 0, 0, 6, 0]])
    padded = torch.cat([x[:, :5], torch.zeros(2, 2), x[:, 5:]], dim=1)
    torch.testing.assert_close(long(padded), short(x))


def test_a_training_from_a_version_keeps_its_tokens() -> None:
    origin = prepared({"type": "auto"})
    start = StartingWeights(model="m", version=1, bundle=bundle(origin))
    begun = assemble(descriptions(90), spec("y", preprocess=READ, hyperparams={"epochs": 1}), start=start)
    assert begun.preprocessor.recipe.tokens[1] == origin.preprocessor.recipe.tokens[1]


@pytest.mark.parametrize(
    ("architecture", "preprocess", "message"),
    [
        ({"type": "mlp"}, READ, '"encode" is tokens, which architecture mlp does not read'),
        ({"type": "boosting"}, {"encode": "tokens"}, "which architecture boosting does not read"),
        ({"type": "auto", "input_shape": [4]}, READ, 'architecture auto has an "input_shape"'),
        ({"type": "auto"}, {"length": 8}, '"length" means nothing without tokens'),
        ({"type": "auto"}, READ | {"length": {"n": 8}}, '"length" of column "n" means nothing without tokens'),
        ({"type": "auto"}, {"encode": "tokens", "vocabulary": 299}, '"vocabulary" is 299'),
        ({"type": "dcn", "text_kernel": 3}, READ, '"text_kernel" means nothing with text_encoder pooling'),
        (
            {"type": "dcn", "text_encoder": "transformer", "text_width": 10},
            READ,
            '"text_width" 10 cannot be split into 4 heads',
        ),
        ({"type": "tabm", "lengths": [3, 3]}, READ, '"lengths" is'),
    ],
)
def test_a_wrong_request_is_refused(architecture: dict[str, Any], preprocess: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        prepared(architecture, preprocess=preprocess)
    assert message in caught.value.message
    assert caught.value.hint


def _encoded(encoder: Tokens, texts: list[str | None]) -> npt.NDArray[np.float64]:
    return encoder.apply(column_of("w", ColumnKind.TEXT, texts))


def _grown(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the value, with more positions of tokens if there are more in the other network."""
    larger = torch.zeros_like(like)
    larger[tuple(map(slice, value.shape))] = value
    return larger
