"""Builds a training in outline, from statistics of the columns alone: its network and the sizes of its batches.

No rows are read and no tensors are allocated: the network is built on the meta device.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import msgspec
import torch
from torch import nn

from indb_tensile.errors import DataError, MissingError, RequestError
from indb_tensile.job import JobSpec, Task
from indb_tensile.learning.batches.batch_order import batch_plan
from indb_tensile.learning.encoding.anomaly_scale import ERRORS_OF_PART
from indb_tensile.learning.encoding.decoded_images import chosen_form
from indb_tensile.learning.encoding.encoders import TIME_PARTS
from indb_tensile.learning.encoding.feature_options import EMBEDDED, TOKENS, FeatureOptions
from indb_tensile.learning.encoding.forecast_encoding import QUANTILES, ForecastValues
from indb_tensile.learning.encoding.image_decoding import ImageHeader, read_header
from indb_tensile.learning.encoding.narrow_rows import NarrowForm
from indb_tensile.learning.encoding.pair_encoding import item_ranges
from indb_tensile.learning.encoding.preprocessor import SCALARS
from indb_tensile.learning.encoding.row_weights import WeightOptions
from indb_tensile.learning.forecasting.forecast_table import forecast_columns
from indb_tensile.learning.forecasting.windows import WindowShape
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.networks.hyperparams import TrainingSettings, settings_of
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.networks.weighted_losses import loss_for
from indb_tensile.learning.relation.memory_estimate import text_numbers
from indb_tensile.learning.storage.columns import ColumnKind
from indb_tensile.learning.storage.splits import Split
from indb_tensile.learning.training.network_choice import auto_reason, value_count
from indb_tensile.request.network_rules import check_architecture

from .foretold_lengths import ForetoldLengths, SampledTexts
from .requests import ColumnSummary, Shares

Shape = tuple[int, ...]

_FEWEST_ROWS = 3  # two to train, because a standard deviation needs two, and one to test


_AVERAGED = (ColumnKind.DATE, ColumnKind.TIME, ColumnKind.CLOCK, ColumnKind.ARRAY)  # columns of several numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutline:
    """The module and the batch sizes to capture.

    `batches` are the sizes of the training steps: full ones, then the last, smaller one, if any. A validation pass
    has the size of the full ones. `steps` are the training steps of one epoch, and `passes` the passes over full
    batches that validate after each epoch. `texts` are the lengths of texts in full batches, if there are several.
    `network_choice` says which network `auto` stands for, and why; it is empty if the request names a network.
    """

    module: nn.Module
    input_shape: Shape
    outputs: int
    task: Task
    settings: TrainingSettings
    batches: tuple[int, ...]
    steps: int
    passes: int
    weighted: bool = False
    forecast: ForecastValues | None = None
    narrow: NarrowForm | None = None  # of the rows, if they have tokens
    texts: ForetoldLengths | None = None
    network_choice: str = ""

    def batch(self, rows: int, missing: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `x`, without the `missing` last tokens of each row, and `y` of a batch, on the meta device."""
        shape, dtype = self.input_shape, torch.float32
        if self.narrow is not None:
            shape, dtype = (self.narrow.width,), torch.int16
        x = torch.empty((rows, *shape[:-1], shape[-1] - missing), dtype=dtype, device="meta")
        if self.forecast is not None:
            packed = 2 * self.forecast.count + 3 * self.forecast.targets
            return x, torch.empty((rows, packed), device="meta")
        values = 1 if self.task is Task.CLASSIFICATION else self.outputs
        if self.settings.mixup is not None:
            return x, torch.empty((rows, 4), device="meta")
        if self.weighted:
            by_label = self.task is Task.MULTILABEL and self.settings.class_weight is not None
            return x, torch.empty((rows, values + (values if by_label else 1)), device="meta")
        if self.task is Task.ANOMALY:
            return x, torch.empty((rows, 1), device="meta")
        if self.task is Task.PAIRS:
            return x, torch.empty((rows, 2), device="meta")
        if self.task is Task.CLASSIFICATION:
            return x, torch.empty(rows, dtype=torch.int64, device="meta")
        return x, torch.empty((rows, values), device="meta")

    @property
    def loss(self) -> nn.Module:
        """The loss that training minimises."""
        return loss_for(self.module, self.task, self.settings, weighted=self.weighted, forecast=self.forecast)


def outline(
    spec: JobSpec,
    columns: list[ColumnSummary],
    rows: int,
    shares: Shares | None = None,
    network: RegisteredNetwork | None = None,
) -> TrainingOutline:
    """Return the training that this specification describes. Raises RequestError if it cannot be built.

    `shares` are the shares of rows that test and validate, if a column of the table says which rows do. For the rows
    of a table of a part, the share is their number divided by `rows`.
    """
    check_architecture(spec.architecture)
    if spec.task is Task.FORECAST:
        return _forecast_outline(spec, columns, rows)
    split = Split.parse(spec.split)
    by_name = {column.name: column for column in columns}
    for name in spec.target_columns:
        if name not in by_name:
            raise MissingError(f'there are no statistics of the target "{name}"')
    pairs = spec.task is Task.PAIRS
    features = [column for column in columns if pairs or column.name not in spec.target_columns]
    outputs = _outputs(spec.task, [by_name[name] for name in spec.target_columns])
    train_rows = _expected_rows(rows, split, shares)
    options = FeatureOptions.parse(spec.preprocess)
    pictured = {column.name for column in features if column.kind == ColumnKind.IMAGE}
    kinds = [ColumnKind(column.kind) for column in features]
    features = [_with_pixels(column, options) if column.name in pictured else column for column in features]
    texts = _texts(features, options)
    architecture = _resolve_architecture(spec, features, train_rows, texts, images=bool(pictured))
    network_choice = _choice_in_words(spec, architecture, auto_reason(spec, architecture, train_rows, kinds, texts))
    if architectures.embeds(architecture):
        options = options.embedding(pairs=pairs)
    if network is not None:
        options = replace(options, longest=network.sizes.positions)
    sampled = SampledTexts(features, options, network)
    options = sampled.options
    input_shape = _input_shape(spec, features, options, outputs)
    layout = _layout(features, options, network, pictured)
    if spec.task is Task.ANOMALY:
        layout |= _part_layout(features, options)
        outputs = ERRORS_OF_PART * len(layout["widths"])
    if pairs:
        layout |= {"item_ranges": _item_ranges(features, options, pictured, spec.target_columns)}
        outputs = 2 * architectures.pair_width(architecture)
    architecture = architectures.with_layout(architecture, layout)
    settings = settings_of(spec, architecture, train_rows, starts=spec.init_from is not None)
    plan = batch_plan(train_rows, settings)
    module = architectures.build_without_memory(
        architecture, input_shape, outputs, task=spec.task, ensemble=settings.ensemble, network=network
    )
    architectures.freeze(module, settings.freeze or ())
    return TrainingOutline(
        module=module,
        input_shape=input_shape,
        outputs=outputs,
        task=spec.task,
        settings=settings,
        batches=(plan.full_rows, plan.tail_rows) if plan.tail_rows else (plan.full_rows,),
        steps=plan.steps,
        weighted=WeightOptions.parse(spec.hyperparams).used,
        passes=math.ceil(rows * _valid_share(split, shares) / plan.full_rows),
        narrow=NarrowForm.of(layout, math.prod(input_shape)),
        texts=sampled.lengths(settings.length_buckets, train_rows, plan.full_rows),
        network_choice=network_choice,
    )


def _forecast_outline(spec: JobSpec, columns: list[ColumnSummary], rows: int) -> TrainingOutline:
    """Return the training of a forecast. The step, and so the calendar and a season, show only in the rows.

    Without a season or a window in the request, the window is that of series without a season.
    """
    by_name = {column.name: column for column in columns}
    own, values = forecast_columns(spec, {name: ColumnKind(column.kind) for name, column in by_name.items()})
    split = Split.parse(spec.split)
    season, horizon = values["season"] or 1, values["horizon"]
    window = values["window"] or max(2 * horizon, 2 * season if season > 1 else 0, 8)
    known = len(own.known) + (2 if values["calendar"] and by_name[own.time].kind != ColumnKind.INTEGER else 0)
    meaning = ForecastValues(horizon=horizon, targets=len(own.targets), interval=values["interval"])
    shape = WindowShape(
        window=window, horizon=horizon, targets=len(own.targets), channels=len(own.channels), known=known
    )
    series = min(rows, math.prod(max(1, by_name[name].distinct or 1) for name in own.series))
    steps = rows // series
    train_rows = max(series * (round(steps * (1 - split.test_size - split.valid_size)) - horizon - 4), 2)
    architecture = dict(spec.architecture)
    if architecture["type"] == "auto":
        architecture = architectures.forecast_default(train_rows)
    texts = [name for name in own.static if by_name[name].kind == ColumnKind.TEXT]
    numbers = len(own.static) - len(texts)
    embedded = architectures.embeds(architecture)
    sizes = [min(by_name[name].distinct or 0, 32) + 2 for name in texts]
    layout = {"numbers": numbers, "categories": sizes if embedded else [], "window": window, "horizon": horizon}
    layout |= {"window_channels": shape.channels, "targets": shape.targets, "known": known}
    architecture = architectures.with_layout(architecture, layout | {"season": min(season, window)})
    settings = settings_of(spec, architecture, train_rows)
    plan = batch_plan(train_rows, settings)
    why = auto_reason(spec, architecture, train_rows, (), architectures.TokenUse.NONE)
    input_shape = (numbers + shape.width + (len(texts) if embedded else sum(sizes)),)
    module = architectures.build_without_memory(
        architecture, input_shape, QUANTILES * meaning.count, task=spec.task, ensemble=settings.ensemble
    )
    return TrainingOutline(
        module=module,
        input_shape=input_shape,
        outputs=QUANTILES * meaning.count,
        task=spec.task,
        settings=settings,
        batches=(plan.full_rows, plan.tail_rows) if plan.tail_rows else (plan.full_rows,),
        steps=plan.steps,
        passes=math.ceil(rows * split.valid_size / plan.full_rows),
        forecast=meaning,
        network_choice=_choice_in_words(spec, architecture, why),
    )


def _part_layout(features: list[ColumnSummary], options: FeatureOptions) -> dict[str, list[int]]:
    """Return what `Preprocessor.part_layout` has: scalars and their indicators first, then the other columns."""
    singles = [1] * sum(width(column, options) for column in features if column.kind in SCALARS)
    others = [(width(column, options), column.kind in _AVERAGED) for column in features if column.kind not in SCALARS]
    divisors = [own if averaged else 1 for own, averaged in others]
    return {"widths": [*singles, *(own for own, _ in others)], "divisors": [*singles, *divisors]}


def _item_ranges(
    features: list[ColumnSummary], options: FeatureOptions, pictured: set[str], items: Sequence[str]
) -> list[int]:
    """Return the ranges of an item's numbers in a row of the order of `Preprocessor`."""

    def place(column: ColumnSummary) -> int:
        if column.name in pictured:
            return 4
        if column.kind == ColumnKind.TEXT:
            return {EMBEDDED: 2, TOKENS: 3}.get(str(options.encoding(column.name)), 1)
        return 0 if column.kind in SCALARS else 1

    ordered = sorted(features, key=place)
    scalars = [column for column in ordered if column.kind in SCALARS]
    sizes = [(column.name, 1) for column in scalars]
    sizes += [(column.name, width(column, options) - 1) for column in scalars]
    sizes += [(column.name, width(column, options)) for column in ordered[len(scalars) :]]
    ends = list(accumulate((size for _, size in sizes), initial=0))
    feature_of = {  # a path of a document has the document's column as its type
        column.name: column.type if column.name.startswith(f"{column.type}.") else column.name for column in features
    }
    parts = [(feature_of[name], ends[at], ends[at + 1]) for at, (name, _) in enumerate(sizes)]
    return list(item_ranges(parts, items))


def _outputs(task: Task, targets: list[ColumnSummary]) -> int:
    """Return the number of outputs: of the values of a regression, or of the classes or labels."""
    if task in (Task.ANOMALY, Task.PAIRS):
        return 1
    if task is Task.CLASSIFICATION:
        return max(2, targets[0].distinct or 0)
    if len(targets) > 1:
        return len(targets)
    if targets[0].kind == ColumnKind.ARRAY:
        return max(1, math.prod(targets[0].shape))
    return max(1, targets[0].distinct or 0) if task is Task.MULTILABEL else 1


def width(column: ColumnSummary, options: FeatureOptions, means: int = 1) -> int:
    """Return how many input numbers a column becomes, as `learning/training/preprocessor_fitting.py` encodes it.

    `means` is the number of means of the target for a text that is encoded by them.
    """
    indicator = int(options.missing_rule(column.name, ColumnKind(column.kind)) == "indicator")
    match column.kind:
        case ColumnKind.TEXT:
            return text_numbers(options, column.name, column.distinct or 0, means)
        case ColumnKind.LABELS:
            return min(column.distinct or 0, options.most_categories(column.name)) + 2
        case ColumnKind.DATE | ColumnKind.TIME | ColumnKind.CLOCK:
            return len(TIME_PARTS[ColumnKind(column.kind)]) + indicator
        case ColumnKind.ARRAY:
            return math.prod(column.shape) + indicator
        case _:
            return 1 + indicator


def _resolve_architecture(
    spec: JobSpec, features: list[ColumnSummary], train_rows: int, texts: architectures.TokenUse, *, images: bool
) -> dict[str, Any]:
    arrays, alone = _array_shapes(features)
    if spec.task is Task.ANOMALY and spec.architecture["type"] == "auto":
        return {"type": "autoencoder"}
    if spec.task is Task.PAIRS and spec.architecture["type"] == "auto":
        return architectures.pair_default(texts)
    values = value_count(ColumnKind(column.kind) for column in features)
    return architectures.resolve(
        spec.architecture, arrays, alone=alone, rows=train_rows, values=values, texts=texts, images=images
    )


def _texts(features: list[ColumnSummary], options: FeatureOptions) -> architectures.TokenUse:
    """Return whether columns are read as tokens."""
    return architectures.TokenUse.among(
        [options.encoding(column.name) if column.kind == ColumnKind.TEXT else None for column in features]
    )


def _choice_in_words(spec: JobSpec, architecture: Mapping[str, Any], reason: str) -> str:
    """Return which network `auto` stands for, and why; nothing if the request names a network."""
    return f"{spec.architecture['type']} stands for {architecture['type']}, as {reason}" if reason else ""


def _with_pixels(column: ColumnSummary, options: FeatureOptions) -> ColumnSummary:
    """Return a column of images as one of arrays of pixels, by the headers of some images."""
    read = [read_header(bytes.fromhex(head)) for head in column.heads]
    headers = [header for header in read if isinstance(header, ImageHeader)]
    if not headers and (options.image_size(column.name) is None or options.image_channels(column.name) is None):
        raise DataError(
            f'column "{column.name}" holds no image in the sampled rows: its size is unknown',
            hint='Give it with preprocess, such as {"size": [64, 64], "channels": "rgb"}.',
        )
    form = chosen_form(headers, column.name, options)
    return msgspec.structs.replace(column, kind=ColumnKind.ARRAY.value, shape=form.shape, ndims=3)


def _array_shapes(features: list[ColumnSummary]) -> tuple[tuple[Shape, ...], bool]:
    """Return the shapes of the features that are arrays, and whether an array is the only feature."""
    arrays = tuple(column.shape for column in features if column.kind == ColumnKind.ARRAY)
    return arrays, len(features) == 1 and bool(arrays)


def _layout(
    features: list[ColumnSummary], options: FeatureOptions, network: RegisteredNetwork | None, pictured: set[str]
) -> dict[str, Any]:
    """Return the counts that `Preprocessor.layout` has after the encoders are fitted, of tokens at most."""
    embedded = [
        min(column.distinct or 0, options.most_categories(column.name)) + 2
        for column in features
        if column.kind == ColumnKind.TEXT and options.encoding(column.name) == EMBEDDED
    ]
    layout = {"numbers": sum(column.kind in SCALARS for column in features), "categories": embedded}
    if pictured:
        layout["images"] = [size for column in features if column.name in pictured for size in column.shape]
    read = [
        column.name
        for column in features
        if column.kind == ColumnKind.TEXT and options.encoding(column.name) == TOKENS
    ]
    if not read:
        return layout
    lengths = [text_numbers(options, name, None) for name in read]
    sizes = [options.most_tokens(name) if network is None else network.tokenizer.size for name in read]
    return layout | {"vocabularies": sizes, "lengths": lengths}


def _input_shape(spec: JobSpec, features: list[ColumnSummary], options: FeatureOptions, outputs: int) -> Shape:
    if not features:
        raise RequestError("no column is left to learn from")
    for column in features:
        if column.kind == ColumnKind.ARRAY and not column.shape:
            raise DataError(
                f'column "{column.name}" holds no array in the sampled rows: its shape is unknown',
                hint="Fill it, or leave it out with exclude.",
            )
    arrays, alone = _array_shapes(features)
    means = 1 if spec.task is Task.CLASSIFICATION and outputs == 2 else outputs
    flat = sum(width(column, options, means) for column in features)
    shape = architectures.natural_shape(spec.architecture, arrays, alone)
    if shape is None:
        return (flat,)
    if math.prod(shape) != flat:
        raise RequestError(f"input_shape {list(shape)} holds {math.prod(shape)} numbers, the features give {flat}")
    return shape


def _expected_rows(rows: int, split: Split, shares: Shares | None) -> int:
    """Return the number of training rows to expect.

    It is exact if the rows are split in order; otherwise it is the mean over random splits.
    """
    test_share, valid_share = split.last or split.test_size, _valid_share(split, shares)
    if split.column is not None and shares is not None:
        test_share = shares.test
    if split.valid is not None:
        valid_share = 0.0  # the rows of that table are not among `rows`
    train = rows - round(rows * test_share) - round(rows * valid_share)
    if rows < _FEWEST_ROWS or train < _FEWEST_ROWS - 1:
        raise DataError(f"the table has {rows} rows, too few to train and test on", hint="Insert rows.")
    return train


def _valid_share(split: Split, shares: Shares | None) -> float:
    if split.valid is not None and shares is not None:
        return shares.valid
    if split.column is not None and shares is not None:
        return shares.valid or split.valid_size * (1 - shares.test)
    return split.valid_size
