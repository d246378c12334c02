"""From a job's specification to everything its training loop needs; the loop itself is the executor's.

Order of what can go wrong: the request is checked before the table is read, the table before anything is built.
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
from indb_tensile.learning.columns import Column, ColumnData, Columns, Rows, Table
from indb_tensile.learning.datareport import Fact, Subject, report_data
from indb_tensile.learning.defaults import FEWEST_VALID_ROWS
from indb_tensile.learning.earlystop import EarlyStop, check_early_stop
from indb_tensile.learning.encoding import encode
from indb_tensile.learning.evaluation import check_metric
from indb_tensile.learning.feature_options import FeatureOptions
from indb_tensile.learning.features import Preprocessor, choose_features, fit, require_present
from indb_tensile.learning.footprint import Footprint, Memory, Statistics, footprint
from indb_tensile.learning.hyperparams import TrainingSettings, check_hyperparams
from indb_tensile.learning.relation import Connection, Limits, read
from indb_tensile.learning.requirements import Requirements, Room
from indb_tensile.learning.splits import Parts, Split, divide
from indb_tensile.learning.targets import Target, fit_target, labeled

_FEWEST_TRAIN_ROWS = 2  # batch normalisation and every spread need two


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Rows on the host: `x` (rows, *input_shape) float32; `y` int64 (rows,) classes or float32 (rows, 1) values."""

    x: Tensor
    y: Tensor

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.y)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A job ready to be captured and trained.

    `architecture` is the resolved one (never `auto`). `valid` may have no rows. `held_out` are the test rows as
    they were read, on which another version of the model can be judged. `unlabeled_rows` had no target and take
    no part. `membership` tells the part of each row, `report` what the table was found to be. `chosen` names what of
    `settings` and `early_stop` was left out and chosen by the rows.
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
    """An epoch in batches: `full` of `full_rows` each, then one of `tail_rows` unless that is 0."""

    full_rows: int
    full: int
    tail_rows: int

    @property
    def steps(self) -> int:
        """Batches in one epoch."""
        return self.full + (self.tail_rows > 0)


def prepare(
    connection: Connection,
    spec: JobSpec,
    *,
    owner_oid: int | None = None,
    snapshot: Snapshot | None = None,
    room: Room | None = None,
    limits: Limits | None = None,
    memory: Memory | None = None,
    tell: Callable[[Footprint], None] = lambda _: None,
) -> Prepared:
    """Check the request, read the table in one transaction, and build what trains on it.

    The connection is the reader's, as for `relation.read`. With `owner_oid` that role must be able to read the
    columns too. With `snapshot` that table is read in place of the relation: its rows are the job's own, so no
    role is asked for. `tell` hears how much memory the rows will need, before they are read and again when the
    first arrays have told their shapes; where that is more than `memory` has, they are not read. Raises RequestError
    and its kinds for what the user can mend, HostMemoryError where there is too little memory now, and as `assemble`
    does.
    """
    if snapshot is not None:
        owner_oid = None
        exclude = tuple(name for name in spec.exclude if name in snapshot.columns)
        spec = replace(spec, relation=snapshot.relation, exclude=exclude)
    checked = _Checked.of(spec)

    def foresee(described: tuple[Column, ...], statistics: Statistics) -> None:
        need = footprint(
            statistics,
            target=spec.target,
            described=described,
            options=checked.options,
            test_size=checked.split.test_size,
        )
        tell(need)
        if memory is not None:
            need.check(f"{spec.relation.schema}.{spec.relation.name}", memory)

    def choose(described: tuple[Column, ...]) -> tuple[str, ...]:
        features = choose_features(described, spec.target, spec.features, left_out(spec), checked.options)
        divider = checked.split.divider
        if divider is not None and divider not in [column.name for column in described]:
            raise _no_divider(divider)
        return (*features, spec.target, *([] if divider is None else [divider]))

    key = None if snapshot is None else snapshot.key
    table = read(connection, spec.relation, choose, owner_oid=owner_oid, key=key, limits=limits, foresee=foresee)
    if snapshot is not None and table.rows != snapshot.rows:
        raise MissingError(
            f"the job's snapshot has {table.rows} rows, {snapshot.rows} were written",
            detail="A copy of the database that was restored without the rows of schema tensile_data has empty ones.",
            hint="Call tensile_train again.",
        )
    return assemble(table, spec, room, consume=True)


def assemble(table: Table, spec: JobSpec, room: Room | None = None, *, consume: bool = False) -> Prepared:
    """The same from a table already read; with `consume` its columns are gone afterwards, and their memory.

    Raises MemoryLimitError or HostMemoryError for a network that does not fit in `room`, before it is allocated.
    """
    checked = _Checked.of(spec)
    features = choose_features(table.described, spec.target, spec.features, left_out(spec), checked.options)
    known = labeled(spec.target, table.columns[spec.target])
    _require_rows(table, known)
    require_present(table.columns, features, checked.options, known)
    parts = _divided(table, known, checked.split)
    train, valid, test = (known[part] for part in (parts.train, parts.valid, parts.test))
    target = fit_target(spec.target, spec.task, table.columns[spec.target].take(known), parts.train)
    preprocessor = _fitted(table, spec, target, features, train)
    architecture = dict(spec.architecture)
    if architecture["type"] == "auto":
        architecture = architectures.default(preprocessor.input_shape, rows=len(train))
    settings = TrainingSettings.parse(spec.hyperparams, len(train))
    if room is not None:
        bare = architectures.build_without_memory(architecture, preprocessor.input_shape, target.outputs)
        Requirements.of(bare, settings).check(room)
    module = architectures.build(architecture, preprocessor.input_shape, target.outputs, seed=settings.seed)
    _require_batches(module, len(train), settings)
    subject = Subject(
        table=table, known=known, parts=parts, split=checked.split, preprocessor=preprocessor, options=checked.options
    )
    report = report_data(subject)
    membership = parts.rule | {"identity": list(table.identity), "keyed": table.keyed}
    held_out = table.take(test)
    encoded = _encoded(table, preprocessor, (train, valid, test), consume=consume)  # nothing reads the table after it
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
        chosen=_left_out(spec),
    )


def left_out(spec: JobSpec) -> tuple[str, ...]:
    """The columns that are no features: those excluded, and the one that divides the rows, unless it is named.

    Raises RequestError where that column cannot be what it is named to be.
    """
    split = Split.parse(spec.split)
    if split.divider is None:
        return spec.exclude
    if split.divider == spec.target:
        raise RequestError(f'split: column "{split.divider}" is the target', hint="Name another column.")
    if spec.features is None:
        return (*spec.exclude, split.divider)
    if split.column in spec.features:
        raise RequestError(
            f'column "{split.column}" says which rows test, and is also a feature', hint="Leave it out of features."
        )
    return spec.exclude


def _encoded(table: Table, preprocessor: Preprocessor, parts: Sequence[Rows], *, consume: bool) -> list[Part]:
    """The rows of each part as tensors."""
    target = preprocessor.target
    targets = [target.encode(table.columns[target.name].take(part)) for part in parts]
    encoded = encode(table.columns, preprocessor, parts, consume=consume)
    if consume:
        table.columns.clear()  # their pages hold nothing any more
    return [Part(x=torch.from_numpy(x), y=torch.from_numpy(y)) for x, y in zip(encoded, targets, strict=True)]


def batch_plan(rows: int, settings: TrainingSettings) -> BatchPlan:
    """How `rows` rows are cut into batches.

    Fewer rows than a batch make one batch. A last batch of a single row is left out of its epoch: batch
    normalisation cannot take it, and the shuffle leaves out another row each time. (Not so for batches of one.)
    """
    full_rows = min(settings.batch_size, rows)
    full, tail = divmod(rows, full_rows) if full_rows else (0, 0)
    return BatchPlan(full_rows=full_rows, full=full, tail_rows=0 if tail == 1 else tail)


def batches(part: Part, epoch: int, settings: TrainingSettings) -> Iterator[Tensor]:
    """The rows of each batch of this epoch (from 0), shuffled by seed and epoch alone: full ones, then the tail."""
    plan = batch_plan(part.rows, settings)
    # Seeds of epochs must not be those of another seed's: one generator per pair.
    mixed = np.random.SeedSequence((settings.seed, epoch)).generate_state(1, np.uint64)[0]
    order = torch.randperm(part.rows, generator=torch.Generator().manual_seed(int(mixed >> np.uint64(1))))
    yield from _cut(order[: plan.full * plan.full_rows + plan.tail_rows], plan.full_rows)


def ordered_batches(part: Part, size: int) -> Iterator[Tensor]:
    """Every row once, in order, for a validation pass: full batches, then a smaller one, were it of one row."""
    yield from _cut(torch.arange(part.rows), size)


def _cut(order: Tensor, size: int) -> Iterator[Tensor]:
    for start in range(0, len(order), max(size, 1)):
        yield order[start : start + size]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """The request's own parts, each checked."""

    split: Split
    options: FeatureOptions
    metric: str

    @classmethod
    def of(cls, spec: JobSpec) -> "_Checked":
        architectures.check(spec.architecture)
        check_hyperparams(spec.hyperparams)
        split = Split.parse(spec.split)
        if (
            spec.early_stop is not None
            and check_early_stop(spec.early_stop, spec.task)["on"]
            and not split.valid_size
        ):
            hint = "Give a valid_size above 0, or switch it off: early_stop => '{\"on\": false}'."
            raise RequestError("early_stop needs validation rows, and the split's valid_size is 0", hint=hint)
        return cls(
            split=split,
            options=FeatureOptions.parse(spec.preprocess),
            metric=check_metric(spec.task, spec.metric),
        )


def _divided(table: Table, known: Rows, split: Split) -> Parts:
    name = split.divider
    if name is not None and name not in table.columns:
        raise _no_divider(name)
    decisive = None if name is None else table.columns[name].take(known)
    return divide(table.row_hash[known], split, decisive, keyed=table.keyed)


def _no_divider(name: str) -> MissingError:
    return MissingError(f'split: column "{name}" does not exist in the table', hint="Give split => '...' anew.")


def _left_out(spec: JobSpec) -> tuple[str, ...]:
    names = tuple(name for name in ("batch_size", "epochs") if spec.hyperparams.get(name) is None)
    return names if spec.early_stop is not None else (*names, "early_stop")


def _early_stop(spec: JobSpec, settings: TrainingSettings, valid_rows: int) -> EarlyStop:
    """As it was given; left out, it is on where the epochs were left out too and there are rows to judge by."""
    request = spec.early_stop
    if request is None and "epochs" in _left_out(spec) and valid_rows >= FEWEST_VALID_ROWS:
        request = {}
    state = EarlyStop.parse(request, spec.task, settings.epochs)
    if state.patience is not None and not valid_rows:
        hint = "Add rows, give a larger valid_size, or switch it off: early_stop => '{\"on\": false}'."
        raise DataError("none of the rows falls to the validation part, which early_stop needs", hint=hint)
    return state


def _fitted(table: Table, spec: JobSpec, target: Target, features: tuple[str, ...], train: Rows) -> Preprocessor:
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


def _require_rows(table: Table, known: Rows) -> None:
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
