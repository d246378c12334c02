"""Fits the preprocessing to the training rows of a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.documents import with_derived
from indb_tensile.learning.encoding.encoders import Arrays, Missing, Numbers, Times
from indb_tensile.learning.encoding.feature_options import EMBEDDED, TOKENS, FeatureOptions
from indb_tensile.learning.encoding.image_encoders import Images
from indb_tensile.learning.encoding.network_tokens import NetworkTokens, fit_network_tokens
from indb_tensile.learning.encoding.preprocessor import (
    FORMAT,
    SCALARS,
    TIMES,
    TRANSFORM_BLOCK_NUMBERS,
    Preprocessor,
    Recipe,
    Tensor32,
)
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.encoding.text_encoders import (
    Codes,
    Goal,
    Hashed,
    LabelSets,
    Ordinals,
    TargetMeans,
    TextFacts,
    Texts,
    most_frequent_text,
)
from indb_tensile.learning.encoding.tokens import TokenFacts, Tokens
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, ColumnRows, Columns, Rows
from indb_tensile.learning.storage.moments import Matrix
from indb_tensile.learning.storage.row_storage import MEMORY, RowStorage, row_blocks


def fit(
    columns: Columns,
    *,
    target: TargetEncoding,
    features: Sequence[str],
    options: FeatureOptions,
    train: Rows,
    input_shape: tuple[int, ...] | None = None,
    storage: RowStorage = MEMORY,
    network: RegisteredNetwork | None = None,
    image_rows: Rows | None = None,
) -> Preprocessor:
    """Fit means, scales and categories to the `train` rows. Without `input_shape` a row is flat.

    `columns` includes the target, and may have the chosen paths of documents. `choose_features` has checked the
    options. `network` is the registered network that reads tokens. `storage` is for intermediate results that grow
    with the rows. `image_rows` are the training rows whose images are decoded, if not all are. Raises DataError if
    every feature is constant, RequestError if the features do not fill `input_shape`.
    """
    paths = options.document_paths([name for name in features if columns[name].kind is ColumnKind.DOCUMENT])
    columns = with_derived(columns, [path for path in paths if path.name not in columns], storage)
    encoded = [name for name in features if columns[name].kind is not ColumnKind.DOCUMENT]
    learned = _TrainingRows(columns, (*encoded, *(path.name for path in paths)), train)
    decoded = train if image_rows is None else image_rows
    goal = _goal(target, ColumnRows(columns[target.name], train)) if target.name in columns else None
    texts = _fit_texts(learned, options, goal, storage, network)
    labels = [
        LabelSets.fit(name, data, options.most_categories(name), options.missing_rule(name, data.kind))
        for name, data in _columns_of_kinds(learned, ColumnKind.LABELS)
    ]
    recipe = Recipe(
        format=FORMAT,
        features=tuple(features),
        numbers=_fit_numbers(learned, options, storage),
        texts=tuple(texts.one_hot),
        times=tuple(
            Times.fit(name, data, options.missing_rule(name, data.kind), storage)
            for name, data in _columns_of_kinds(learned, *TIMES)
        ),
        arrays=_fit_arrays(learned, options, storage),
        target=target,
        input_shape=(),
        ordinals=tuple(texts.ordinals),
        hashed=tuple(texts.hashed),
        target_means=tuple(texts.target_means),
        labels=tuple(encoder for encoder, _ in labels),
        documents=paths,
        fills=texts.fills,
        codes=tuple(texts.codes),
        tokens=tuple(texts.tokens),
        network_tokens=tuple(texts.network_tokens),
        images=_fit_images(_TrainingRows(columns, encoded, decoded), options),
        singles=tuple(name for name in features if columns[name].values.dtype == np.float32),
    )
    width = len(Preprocessor(recipe).outputs)
    shape = (width,) if input_shape is None else input_shape
    if int(np.prod(shape)) != width:
        raise RequestError(
            f"input_shape {list(shape)} holds {int(np.prod(shape))} numbers, the features give {width}",
            detail=f"The features are: {', '.join(features)}.",
        )
    facts = (*texts.facts, *(own for _, own in labels))
    tokenizer = None if network is None else network.tokenizer
    recipe = replace(recipe, input_shape=shape)
    fitted = Preprocessor(recipe, facts, texts.of_training, tuple(texts.token_facts), tokenizer)
    _require_different_rows(fitted, _TrainingRows(columns, features, decoded), features, len(train))
    return fitted


def _fit_arrays(learned: "_TrainingRows", options: FeatureOptions, storage: RowStorage) -> tuple[Arrays, ...]:
    """Fit the encoders of arrays of numbers."""
    return tuple(
        Arrays.fit(
            name,
            data,
            standardize=options.standardizes(name),
            missing=options.missing_rule(name, data.kind),
            storage=storage,
        )
        for name, data in _columns_of_kinds(learned, ColumnKind.ARRAY)
    )


def _fit_images(learned: "_TrainingRows", options: FeatureOptions) -> tuple[Images, ...]:
    """Fit the encoders of images."""
    return tuple(
        Images.fit(
            name,
            data,
            options.image_form(name, data.shape),
            standardize=options.standardizes(name),
            missing=options.missing_rule(name, data.kind),
            skips=options.skips_errors(name),
        )
        for name, data in _columns_of_kinds(learned, ColumnKind.IMAGE)
    )


class _TrainingRows(Mapping[str, ColumnRows]):
    """The training rows of the columns."""

    def __init__(self, columns: Columns, names: Sequence[str], rows: Rows) -> None:
        self._columns = {name: columns[name] for name in names}
        self._rows = rows

    def __getitem__(self, name: str) -> ColumnRows:
        return ColumnRows(self._columns[name], self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def parts(self, step: int) -> Iterator[Columns]:
        """Yield the rows in order, in blocks of `step` rows."""
        for start, end in row_blocks(len(self._rows), step):
            part = self._rows[start:end]
            yield {name: data.take(part) for name, data in self._columns.items()}


def _columns_of_kinds(learned: "_TrainingRows", *kinds: ColumnKind) -> Iterator[tuple[str, ColumnRows]]:
    return ((name, learned[name]) for name in learned if learned[name].kind in kinds)


@dataclass(slots=True)
class _FittedTexts:
    """The encoders of the text columns, and `of_training`: the training rows' own encodings, by column."""

    one_hot: list[Texts] = field(default_factory=list)
    ordinals: list[Ordinals] = field(default_factory=list)
    hashed: list[Hashed] = field(default_factory=list)
    target_means: list[TargetMeans] = field(default_factory=list)
    codes: list[Codes] = field(default_factory=list)
    tokens: list[Tokens] = field(default_factory=list)
    network_tokens: list[NetworkTokens] = field(default_factory=list)
    facts: list[TextFacts] = field(default_factory=list)
    token_facts: list[TokenFacts] = field(default_factory=list)
    fills: dict[str, str] = field(default_factory=dict)
    of_training: dict[str, Matrix] = field(default_factory=dict)


def _fit_texts(
    learned: "_TrainingRows",
    options: FeatureOptions,
    goal: Goal | None,
    storage: RowStorage,
    network: RegisteredNetwork | None,
) -> _FittedTexts:
    """Fit an encoder to each text column, as `encode` says. `goal` is the target of the training rows."""
    fitted = _FittedTexts()
    for name, data in _columns_of_kinds(learned, ColumnKind.TEXT):
        rule = options.missing_rule(name, data.kind)
        fill = fill_of(data, rule)
        if fill is not None:
            fitted.fills[name] = fill
        most, encoding = options.most_categories(name), options.encoding(name)
        required = rule == "error"
        if encoding == "target":
            assert goal is not None
            means, facts, own = TargetMeans.fit(name, data, most, rule, goal, fill=fill, storage=storage)
            fitted.target_means.append(means)
            fitted.facts.append(facts)
            fitted.of_training[name] = own
        elif encoding == "hash":
            fitted.hashed.append(Hashed(name=name, buckets=most, required=required))
        elif encoding == EMBEDDED:
            codes, facts = Codes.fit(name, data, most, rule, fill)
            fitted.codes.append(codes)
            fitted.facts.append(facts)
        elif encoding == TOKENS and network is not None:
            own_tokens, own_facts = fit_network_tokens(
                name,
                data,
                options.token_length(name),
                rule,
                fill,
                network=network.name,
                digest=network.digest,
                positions=network.sizes.positions,
                tokenizer=network.tokenizer,
            )
            fitted.network_tokens.append(own_tokens)
            fitted.token_facts.append(own_facts)
        elif encoding == TOKENS:
            vocabulary, length = options.most_tokens(name), options.token_length(name)
            tokens, own_facts = Tokens.fit(name, data, vocabulary, length, rule, fill)
            fitted.tokens.append(tokens)
            fitted.token_facts.append(own_facts)
        elif encoding == "onehot":
            texts, facts = Texts.fit(name, data, most, rule, fill)
            fitted.one_hot.append(texts)
            fitted.facts.append(facts)
        else:
            order = encoding if isinstance(encoding, tuple) else _text_order(name, data, most, fill, fitted.facts)
            fitted.ordinals.append(Ordinals(name=name, order=order, required=required))
    return fitted


def fill_of(data: ColumnRows, rule: Missing) -> str | None:
    """Return the text that replaces missing texts by this rule, or None if none does."""
    if rule == "most_frequent":
        return most_frequent_text(data)
    return rule["constant"] if isinstance(rule, dict) else None


def _text_order(name: str, data: ColumnRows, most: int, fill: str | None, facts: list[TextFacts]) -> tuple[str, ...]:
    texts, own = Texts.fit(name, data, most, "mean", fill)
    facts.append(own)
    return texts.categories


def _goal(target: TargetEncoding, rows: ColumnRows) -> Goal:
    columns = 1 if target.task is Task.CLASSIFICATION and target.outputs == 2 else target.outputs
    return Goal(columns, lambda step: (_goal_numbers(target, block) for block in rows.blocks(step)))


def _goal_numbers(target: TargetEncoding, goal: ColumnData) -> Matrix:
    """Return what the means of a category are computed from: values, or memberships in classes or in label sets."""
    encoded = target.encode(goal)
    if target.task is not Task.CLASSIFICATION:
        return encoded.astype(np.float64)
    members = np.eye(target.outputs)[encoded]
    return members[:, 1:] if target.outputs == 2 else members  # of two classes, the second says all


def _fit_numbers(learned: "_TrainingRows", options: FeatureOptions, storage: RowStorage) -> Numbers:
    names = [name for name in learned if learned[name].kind in SCALARS]
    kinds = [learned[name].kind for name in names]
    pairs = list(zip(names, kinds, strict=True))
    return Numbers.fit(
        names,
        (learned[name] for name in names),
        # Booleans are 0 and 1, so they are not scaled.
        [options.standardizes(name) and kind is not ColumnKind.BOOLEAN for name, kind in pairs],
        [options.missing_rule(name, kind) for name, kind in pairs],
        scaled_by=[options.scaling(name, kind) for name, kind in pairs],
        durations=[place for place, kind in enumerate(kinds) if kind is ColumnKind.DURATION],
        storage=storage,
    )


def _require_different_rows(
    fitted: Preprocessor, learned: "_TrainingRows", features: Sequence[str], train: int
) -> None:
    """Raise DataError if all these rows are equal, which are some of `train` training rows or all.

    The rows are encoded in blocks, since the first block almost always contains different rows.
    """
    first: Tensor32 | None = None
    rows = 0
    for part in learned.parts(fitted.block_rows or TRANSFORM_BLOCK_NUMBERS):
        x = fitted.transform(part)
        first = x[:1] if first is None else first
        rows += len(x)
        if (x != first).any():
            return
    looked_at = f"all {rows} training rows" if rows == train else f"{rows} of {train} training rows, taken at random"
    raise DataError(
        f"every feature has one value in {looked_at}: there is nothing to learn from",
        detail=f"The features are: {', '.join(features)}.",
        hint="Add rows that differ, or name other columns with features => '{...}'.",
    )
