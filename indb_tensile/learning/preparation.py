"""Prepares a training: from a job's specification to everything that the training loop needs.

The loop itself is part of the executor. The request is checked before the table is read, and the table is checked
before anything is built.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from indb_tensile.errors import DataError, MissingError, RequestError
from indb_tensile.job import JobSpec, Snapshot, Task
from indb_tensile.learning import architectures
from indb_tensile.learning.columns import Column, ColumnData, Columns, Rows, TableData
from indb_tensile.learning.datareport import Fact, ReportInput, report_data
from indb_tensile.learning.earlystop import EarlyStop
from indb_tensile.learning.encoding import encode
from indb_tensile.learning.feature_options import FeatureOptions
from indb_tensile.learning.hyperparams import TrainingSettings
from indb_tensile.learning.locked_relation import Connection, ReadLimits
from indb_tensile.learning.memory_estimate import MemoryEstimate, RowMemoryLimits, Statistics, estimate_memory
from indb_tensile.learning.model_metrics import default_metric
from indb_tensile.learning.preprocessor import Preprocessor, choose_features, fit, require_present
from indb_tensile.learning.relation_reader import read
from indb_tensile.learning.requirements import AvailableMemory, Requirements
from indb_tensile.learning.splits import Parts, Split, divide
from indb_tensile.learning.targets import TargetEncoding, fit_target, labeled
from indb_tensile.learning.training_length import FEWEST_VALID_ROWS
from indb_tensile.request.early_stop_rules import check_early_stop
from indb_tensile.request.hyperparam_rules import check_hyperparams
from indb_tensile.request.network_rules import check_architecture
from indb_tensile.request.split_rules import check_split_use
from indb_tensile.request.task_rules import check_metric

_FEWEST_TRAIN_ROWS = 2  # batch normalisation and every standard deviation need two


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Rows of one part on the host.

    `x` is float32 (rows, *input_shape). `y` is int64 class numbers (rows,) or float32 values (rows, 1).
    """

    x: Tensor
    y: Tensor

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.y)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A job that is ready to be captured and trained.

    `architecture` is resolved (never `auto`). `valid` may have no rows. `held_out` are the test rows as they were
    read, on which another version of the model can be evaluated. `unlabeled_rows` is the number of rows without a
    target, which take no part. `membership` is the rule that gives the part of each row. `report` is the data report.
    `chosen` names the values of `settings` and `early_stop` that were not requested but chosen for the number of
    rows.
    """

    module: nn.Module
    loss: nn.Module
    train: Part
    valid: Part
    test: Part
    preprocessor: Preprocessor
    data_digest: str
    settings: TrainingSettings
    early_stop: EarlyStop
    metric: str
    architecture: dict[str, Any]
    outputs: int
    input_shape: tuple[int, ...]
    task: Task
    held_out: Columns
    unlabeled_rows: int
    membership: dict[str, Any]
    report: tuple[Fact, ...]
    chosen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The batches of an epoch: `full` batches of `full_rows` rows, then one of `tail_rows` rows unless that is 0."""

    full_rows: int
    full: int
    tail_rows: int

    @property
    def steps(self) -> int:
        """Return the number of batches in one epoch."""
        return self.full + (self.tail_rows > 0)


def prepare(
    connection: Connection,
    spec: JobSpec,
    *,
    owner_oid: int | None = None,
    snapshot: Snapshot | None = None,
    room: AvailableMemory | None = None,
    limits: ReadLimits | None = None,
    memory: RowMemoryLimits | None = None,
    tell: Callable[[MemoryEstimate], None] = lambda _: None,
) -> Prepared:
    """Check the request, read the table in one transaction, and build the network and its data.

    `connection` is the reader's, as for `relation.read`. If `owner_oid` is given, that role must be able to read the
    columns. If `snapshot` is given, that table is read instead of the relation; its rows belong to the job, so no
    role is checked. `tell` is called with the estimate of the rows' memory before they are read, and again when the
    first arrays have given their shapes. The rows are not read if the estimate exceeds `memory`.

    Raises RequestError and its subclasses for faults that the user can correct, HostMemoryError if there is too
    little memory now, and the errors of `assemble`.
    """
    if snapshot is not None:
        owner_oid = None
        exclude = tuple(name for name in spec.exclude if name in snapshot.columns)
        spec = replace(spec, relation=snapshot.relation, exclude=exclude, column_numbers={})
    checked = _CheckedOptions.of(spec)
    spec = _without_later_columns(spec, checked.split.divider)

    def check_estimate(described: tuple[Column, ...], statistics: Statistics) -> None:
        estimate = estimate_memory(
            statistics,
            target=spec.target,
            described=described,
            options=checked.options,
            test_size=checked.split.test_size,
        )
        tell(estimate)
        if memory is not None:
            estimate.check(f"{spec.relation.schema}.{spec.relation.name}", memory)

    def choose(described: tuple[Column, ...]) -> tuple[str, ...]:
        _require_same_columns(spec, described)
        features = choose_features(described, spec.target, spec.features, left_out(spec), checked.options)
        divider = checked.split.divider
        if divider is not None and divider not in [column.name for column in described]:
            raise _missing_divider_error(divider)
        return (*features, spec.target, *([] if divider is None else [divider]))

    key = None if snapshot is None else snapshot.key
    table = read(
        connection, spec.relation, choose, owner_oid=owner_oid, key=key, limits=limits, on_statistics=check_estimate
    )
    if snapshot is not None and table.rows != snapshot.rows:
        raise MissingError(
            f"the job's snapshot has {table.rows} rows, {snapshot.rows} were written",
            detail="A copy of the database that was restored without the rows of schema tensile_data has empty ones.",
            hint="Call tensile_train again.",
        )
    return assemble(table, spec, room, consume=True)


def _require_same_columns(spec: JobSpec, described: tuple[Column, ...]) -> None:
    """Refuse a table whose columns were dropped, renamed or created again after the job was enqueued."""
    numbers = {column.name: column.number for column in described}
    changed = sorted(name for name, number in spec.column_numbers.items() if numbers.get(name) != number)
    if changed:
        table = f"{spec.relation.schema}.{spec.relation.name}"
        listed = ", ".join(f'"{name}"' for name in changed)
        raise MissingError(
            f"columns of table {table} changed after the job was enqueued: {listed}",
            detail="They were dropped or renamed, or other columns have these names now.",
            hint="Call tensile_train again to train on the present columns.",
        )


def _without_later_columns(spec: JobSpec, divider: str | None) -> JobSpec:
    """Return the specification with the features that the table had when the job was enqueued, in the table's order.

    Otherwise a column that was added while the job waited would become a feature, and an excluded column that was
    dropped would end the job.
    """
    if not spec.column_numbers:
        return spec
    numbered = sorted((number, name) for name, number in spec.column_numbers.items())
    features = spec.features or tuple(name for _, name in numbered if name not in (spec.target, divider))
    return replace(spec, features=features, exclude=())


def assemble(
    table: TableData, spec: JobSpec, room: AvailableMemory | None = None, *, consume: bool = False
) -> Prepared:
    """Prepare a training from a table that was already read.

    With `consume` the table's columns are emptied and their memory is freed. Raises MemoryLimitError or
    HostMemoryError for a network that does not fit in `room`, before the network is allocated.
    """
    checked = _CheckedOptions.of(spec)
    features = choose_features(table.described, spec.target, spec.features, left_out(spec), checked.options)
    known = labeled(spec.target, table.columns[spec.target])
    _require_rows(table, known)
    require_present(table.columns, features, checked.options, known)
    parts = _divide_rows(table, known, checked.split)
    train, valid, test = (known[part] for part in (parts.train, parts.valid, parts.test))
    target = fit_target(spec.target, spec.task, table.columns[spec.target].take(known), parts.train)
    preprocessor = _fit_preprocessor(table, spec, target, features, train)
    architecture = dict(spec.architecture)
    if architecture["type"] == "auto":
        architecture = architectures.default(preprocessor.input_shape, rows=len(train))
    settings = TrainingSettings.parse(spec.hyperparams, len(train))
    if room is not None:
        empty_module = architectures.build_without_memory(architecture, preprocessor.input_shape, target.outputs)
        Requirements.of(empty_module, settings).check(room)
    module = architectures.build(architecture, preprocessor.input_shape, target.outputs, seed=settings.seed)
    _require_batches(module, len(train), settings)
    subject = ReportInput(
        table=table, known=known, parts=parts, split=checked.split, preprocessor=preprocessor, options=checked.options
    )
    report = report_data(subject)
    membership = parts.rule | {"identity": list(table.identity), "keyed": table.keyed}
    held_out = table.take(test)
    # With `consume` this is the last use of the table.
    encoded = _encode_parts(table, preprocessor, (train, valid, test), consume=consume)
    return Prepared(
        module=module,
        loss=nn.CrossEntropyLoss() if spec.task is Task.CLASSIFICATION else nn.MSELoss(),
        train=encoded[0],
        valid=encoded[1],
        test=encoded[2],
        preprocessor=preprocessor,
        data_digest=table.digest,
        settings=settings,
        early_stop=_early_stop(spec, settings, len(valid)),
        metric=checked.metric,
        architecture=architecture,
        outputs=target.outputs,
        input_shape=preprocessor.input_shape,
        task=spec.task,
        held_out=held_out,
        unlabeled_rows=table.rows - len(known),
        membership=membership,
        report=report,
        chosen=_chosen_by_default(spec),
    )


def left_out(spec: JobSpec) -> tuple[str, ...]:
    """Return the columns that are not features: the excluded ones, and the column that divides the rows.

    The dividing column is a feature only if the request names it as a feature. Raises RequestError if the dividing
    column is the target, or is both a feature and the column that says which rows test.
    """
    split = Split.parse(spec.split)
    check_split_use(spec.split, spec.target, spec.features)
    if split.divider is None or spec.features is not None:
        return spec.exclude
    return (*spec.exclude, split.divider)


def _encode_parts(
    table: TableData, preprocessor: Preprocessor, parts: Sequence[Rows], *, consume: bool
) -> list[Part]:
    """Return the rows of each part as tensors."""
    target = preprocessor.target
    targets = [target.encode(table.columns[target.name].take(part)) for part in parts]
    encoded = encode(table.columns, preprocessor, parts, consume=consume)
    if consume:
        table.columns.clear()  # their pages were freed
    return [Part(x=torch.from_numpy(x), y=torch.from_numpy(y)) for x, y in zip(encoded, targets, strict=True)]


def batch_plan(rows: int, settings: TrainingSettings) -> BatchPlan:
    """Return how `rows` rows are divided into batches.

    If there are fewer rows than a batch, all rows are one batch. A last batch of a single row is left out of its
    epoch, because batch normalisation cannot process it; the shuffle leaves out another row in each epoch. With
    `batch_size` 1 no row is left out.
    """
    full_rows = min(settings.batch_size, rows)
    full, tail = divmod(rows, full_rows) if full_rows else (0, 0)
    return BatchPlan(full_rows=full_rows, full=full, tail_rows=0 if tail == 1 else tail)


def batches(part: Part, epoch: int, settings: TrainingSettings) -> Iterator[Tensor]:
    """Yield the rows of each batch of this epoch (from 0): the full batches, then the smaller one.

    The order depends on the seed and the epoch only.
    """
    plan = batch_plan(part.rows, settings)
    # One generator per pair of seed and epoch: seed + epoch would repeat the orders of another seed.
    mixed = np.random.SeedSequence((settings.seed, epoch)).generate_state(1, np.uint64)[0]
    order = torch.randperm(part.rows, generator=torch.Generator().manual_seed(int(mixed >> np.uint64(1))))
    yield from _slices(order[: plan.full * plan.full_rows + plan.tail_rows], plan.full_rows)


def ordered_batches(part: Part, size: int) -> Iterator[Tensor]:
    """Yield every row once, in order, for a validation pass.

    All batches are full except the last, which may have a single row.
    """
    yield from _slices(torch.arange(part.rows), size)


def _slices(order: Tensor, size: int) -> Iterator[Tensor]:
    for start in range(0, len(order), max(size, 1)):
        yield order[start : start + size]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedOptions:
    """The options of a request that `prepare` needs before the table is read, each checked."""

    split: Split
    options: FeatureOptions
    metric: str

    @classmethod
    def of(cls, spec: JobSpec) -> "_CheckedOptions":
        """Check every option of the specification."""
        check_architecture(spec.architecture)
        check_hyperparams(spec.hyperparams)
        split = Split.parse(spec.split)
        if spec.early_stop is not None:
            check_early_stop(spec.early_stop, spec.task, spec.split)
        return cls(
            split=split,
            options=FeatureOptions.parse(spec.preprocess),
            metric=default_metric(spec.task) if spec.metric is None else check_metric(spec.task, spec.metric),
        )


def _divide_rows(table: TableData, known: Rows, split: Split) -> Parts:
    name = split.divider
    if name is not None and name not in table.columns:
        raise _missing_divider_error(name)
    decisive = None if name is None else table.columns[name].take(known)
    return divide(table.row_hash[known], split, decisive, keyed=table.keyed)


def _missing_divider_error(name: str) -> MissingError:
    return MissingError(f'split: column "{name}" does not exist in the table', hint="Give another split => '...'.")


def _chosen_by_default(spec: JobSpec) -> tuple[str, ...]:
    """Return the names of the settings that the request leaves to the package."""
    names = tuple(name for name in ("batch_size", "epochs") if spec.hyperparams.get(name) is None)
    return names if spec.early_stop is not None else (*names, "early_stop")


def _early_stop(spec: JobSpec, settings: TrainingSettings, valid_rows: int) -> EarlyStop:
    """Return the initial state of early stopping.

    If the request does not mention early stopping, it is on if the request does not give the epochs either and there
    are enough validation rows.
    """
    request = spec.early_stop
    if request is None and "epochs" in _chosen_by_default(spec) and valid_rows >= FEWEST_VALID_ROWS:
        request = {}
    state = EarlyStop.parse(request, spec.task, settings.epochs)
    if state.patience is not None and not valid_rows:
        hint = "Add rows, give a larger valid_size, or switch it off: early_stop => '{\"on\": false}'."
        raise DataError("none of the rows falls to the validation part, which early_stop needs", hint=hint)
    return state


def _fit_preprocessor(
    table: TableData, spec: JobSpec, target: TargetEncoding, features: tuple[str, ...], train: Rows
) -> Preprocessor:
    learned = [table.columns[name] for name in features]
    _require_known_shapes(features, learned)
    arrays = tuple(data.shape for data in learned if data.shape)
    alone = len(learned) == 1 and bool(arrays)
    shape = architectures.natural_shape(spec.architecture, arrays, alone)
    options = FeatureOptions.parse(spec.preprocess)
    return fit(table.columns, target=target, features=features, options=options, train=train, input_shape=shape)


def _require_known_shapes(features: tuple[str, ...], learned: list[ColumnData]) -> None:
    for name, data in zip(features, learned, strict=True):
        if data.shape == (0,):
            hint = "Fill it, or leave it out with exclude."
            raise DataError(
                f'column "{name}" is NULL in all {len(data.missing)} rows: its shape is unknown', hint=hint
            )


def _require_rows(table: TableData, known: Rows) -> None:
    fewest = _FEWEST_TRAIN_ROWS + 1
    if len(known) < fewest:
        raise DataError(
            f"the table has {len(known)} rows with a target, {fewest} are the fewest to train and test on",
            detail=f"It has {table.rows} rows in all.",
            hint="Insert rows, commit, and call tensile_train again.",
        )


def _require_batches(module: nn.Module, rows: int, settings: TrainingSettings) -> None:
    if rows < _FEWEST_TRAIN_ROWS:
        hint = "Add rows, or make the test and validation parts smaller with split."
        raise DataError(f"{rows} row falls to the training part, {_FEWEST_TRAIN_ROWS} are needed", hint=hint)
    normalises = any(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) for part in module.modules())
    for name in ("batch_size", "micro_batch_size"):
        if normalises and getattr(settings, name) == 1:
            hint = f'Set "{name}" to 2 or more, or train without batch normalisation.'
            raise RequestError("batch normalisation cannot learn from batches of one row", hint=hint)
