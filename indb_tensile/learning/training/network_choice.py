"""Chooses the network of a training for its columns, if the request leaves that open."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from indb_tensile.errors import DataError
from indb_tensile.job import JobSpec, Task
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.preprocessor import SCALARS
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, Columns


def texts_of(columns: Columns, features: tuple[str, ...], options: FeatureOptions) -> architectures.TokenUse:
    """Return whether columns are read as tokens."""
    encodings = [options.encoding(name) if columns[name].kind is ColumnKind.TEXT else None for name in features]
    return architectures.TokenUse.among(encodings)


def resolve_architecture(
    spec: JobSpec, columns: Columns, features: tuple[str, ...], rows: int, texts: architectures.TokenUse
) -> dict[str, Any]:
    """Return the complete architecture for these features. Refuses arrays of unknown shapes."""
    if spec.task is Task.FORECAST and spec.architecture["type"] == "auto":
        return architectures.forecast_default(rows)
    if spec.task is Task.ANOMALY and spec.architecture["type"] == "auto":
        return {"type": "autoencoder"}
    _require_known_shapes(features, [columns[name] for name in features])
    if spec.task is Task.PAIRS and spec.architecture["type"] == "auto":
        return architectures.pair_default(texts)
    arrays, alone = array_shapes(columns, features)
    kinds = [columns[name].kind for name in features]
    return architectures.resolve(
        spec.architecture,
        arrays,
        alone=alone,
        rows=rows,
        values=value_count(kinds),
        texts=texts,
        images=ColumnKind.IMAGE in kinds,
    )


def value_count(kinds: Iterable[ColumnKind]) -> int:
    """Return how many features of these kinds are numbers or categories, which some networks embed."""
    return sum(kind in (*SCALARS, ColumnKind.TEXT) for kind in kinds)


def auto_reason(
    spec: JobSpec,
    architecture: Mapping[str, Any],
    rows: int,
    kinds: Sequence[ColumnKind],
    texts: architectures.TokenUse,
) -> str:
    """Return why `auto` stands for this network; empty if the request names one."""
    if spec.architecture["type"] != "auto":
        return ""
    if spec.task is Task.FORECAST:
        return f"{rows} windows of series train"
    if spec.task is Task.ANOMALY:
        return "the rows have no answer to predict"
    if spec.task is Task.PAIRS:
        return "the rows are pairs of a query and an item"
    is_image = architecture["type"] in ("cnn", "resnet")
    return architectures.why_default(is_image, rows, value_count(kinds), texts, images=ColumnKind.IMAGE in kinds)


def array_shapes(columns: Columns, features: tuple[str, ...]) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """Return the shapes of the features that are arrays, and whether an array is the only feature."""
    arrays = tuple(columns[name].shape for name in features if columns[name].shape)
    return arrays, len(features) == 1 and bool(arrays)


def _require_known_shapes(features: tuple[str, ...], learned: list[ColumnData]) -> None:
    for name, data in zip(features, learned, strict=True):
        if data.shape == (0,):
            hint = "Fill it, or leave it out with exclude."
            raise DataError(
                f'column "{name}" is NULL in all {len(data.missing)} rows: its shape is unknown', hint=hint
            )
