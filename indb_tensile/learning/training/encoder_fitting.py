"""Fits the encoders of the target and the features to the training rows, and chooses the network that reads them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from indb_tensile.job import JobSpec, Task
from indb_tensile.learning.encoding.anomaly_scale import AnomalyScale
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.encoding.targets import (
    TargetEncoding,
    anomaly_target,
    fit_target,
    link_function_of,
    pair_target,
)
from indb_tensile.learning.forecasting.forecast_table import ForecastRows
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.storage.columns import ColumnKind, Columns, Rows, TableData
from indb_tensile.learning.storage.row_storage import RowStorage
from indb_tensile.learning.storage.splits import Parts
from indb_tensile.learning.training.checked_options import CheckedOptions
from indb_tensile.learning.training.learnable_rows import LearnableRows
from indb_tensile.learning.training.network_choice import array_shapes, resolve_architecture, texts_of
from indb_tensile.learning.training.preprocessor_fitting import fit
from indb_tensile.learning.training.starting_weights import StartingWeights


class FittedEncoders(NamedTuple):
    """How the target and the features are encoded for the network, and the network itself.

    If the training starts from an earlier version, `spec` has what it takes over from that version.
    """

    spec: JobSpec
    target: TargetEncoding
    features: tuple[str, ...]
    kinds: list[ColumnKind]
    texts: architectures.TokenUse
    architecture: dict[str, Any]
    options: FeatureOptions
    preprocessor: Preprocessor


def fit_encoders(
    learnable: LearnableRows,
    columns: Columns,
    parts: Parts,
    train: Rows,
    spec: JobSpec,
    checked: CheckedOptions,
    start: StartingWeights | None,
    forecast: ForecastRows | None,
    network: RegisteredNetwork | None,
) -> FittedEncoders:
    """Fit the target and the features to the training rows, whose numbers are `train`, and choose the network."""
    table, known, features = learnable.table, learnable.known, learnable.features
    target = _fit_target(table, spec, known, parts) if forecast is None else forecast.target(spec.target)
    if start is not None:
        spec, target, features = _continue_from(start, spec, target, features)
    texts, kinds = texts_of(columns, features, checked.options), [columns[name].kind for name in features]
    architecture = resolve_architecture(spec, columns, features, len(train), texts)
    options = _options_for(architecture, checked.options, spec.task)
    images = learnable.images.sample(train)
    preprocessor = _fit_preprocessor(columns, spec, options, target, features, train, table.storage, network, images)
    target, preprocessor = _with_parts(target, preprocessor, architecture)
    if start is not None:
        preprocessor = start.keep_encoders(preprocessor, spec.preprocess)
    return FittedEncoders(
        spec=spec,
        target=target,
        features=features,
        kinds=kinds,
        texts=texts,
        architecture=architecture,
        options=options,
        preprocessor=preprocessor,
    )


def _options_for(architecture: dict[str, Any], options: FeatureOptions, task: Task) -> FeatureOptions:
    """Return the options of the features for a network: one that embeds its inputs gets categories by number."""
    return options.embedding(pairs=task is Task.PAIRS) if architectures.embeds(architecture) else options


def _fit_target(table: TableData, spec: JobSpec, known: Rows, parts: Parts) -> TargetEncoding:
    """Fit the encoding of the target to the rows that have one."""
    if spec.task is Task.PAIRS:
        return pair_target(spec.target, spec.target_columns)
    column = table.columns[spec.target]
    if spec.task is Task.ANOMALY:
        return anomaly_target(spec.target, column, spec.hyperparams.get("contamination"))
    labels = column if len(known) == table.rows else column.stored(known, table.storage)
    link = link_function_of(spec.hyperparams.get("loss"))
    return fit_target(spec.target, spec.task, labels, parts.train, link, spec.targets, spec.split)


def _continue_from(
    start: StartingWeights, spec: JobSpec, target: TargetEncoding, features: tuple[str, ...]
) -> tuple[JobSpec, TargetEncoding, tuple[str, ...]]:
    """Return all three changed so that the training can go on from an earlier version: its classes, the order of its
    features and, for `auto`, its architecture.
    """
    target, features = start.keep_target(target), start.in_order(features)
    if spec.architecture["type"] == "auto":
        spec = replace(spec, architecture=architectures.without_layout(start.architecture))
    return spec, target, features


def _with_parts(
    target: TargetEncoding, preprocessor: Preprocessor, architecture: Mapping[str, Any]
) -> tuple[TargetEncoding, Preprocessor]:
    """Return both completed for networks whose outputs are no values of the target.

    A network that detects anomalies gives an error for each part of a row, and one that ranks pairs gives vectors.
    """
    if target.anomaly is not None:
        return _with_anomaly_parts(target, target.anomaly, preprocessor)
    if target.pair is None:
        return target, preprocessor
    target = replace(target, pair=replace(target.pair, width=architectures.pair_width(architecture)))
    return target, preprocessor.with_target(target)


def _with_anomaly_parts(
    target: TargetEncoding, anomaly: AnomalyScale, preprocessor: Preprocessor
) -> tuple[TargetEncoding, Preprocessor]:
    """Return both with the features whose errors add up to a row's score."""
    target = replace(target, anomaly=replace(anomaly, parts=tuple(own.feature for own in preprocessor.parts)))
    return target, preprocessor.with_target(target)


def _fit_preprocessor(
    columns: Columns,
    spec: JobSpec,
    options: FeatureOptions,
    target: TargetEncoding,
    features: tuple[str, ...],
    train: Rows,
    storage: RowStorage,
    network: RegisteredNetwork | None,
    image_rows: Rows | None,
) -> Preprocessor:
    shape = architectures.natural_shape(spec.architecture, *array_shapes(columns, features))
    return fit(
        columns,
        target=target,
        features=features,
        options=options,
        train=train,
        input_shape=shape,
        storage=storage,
        network=network,
        image_rows=image_rows,
    )
