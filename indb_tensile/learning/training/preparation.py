"""Prepares a training: from a job's specification to everything that the training loop needs.

The loop itself is part of the executor. The request is checked before the table is read, and the table is checked
before anything is built.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from indb_tensile.errors import DataError, MissingError, RequestError
from indb_tensile.job import JobSpec, SnapshotTable, Task
from indb_tensile.learning.batches.length_buckets import length_buckets
from indb_tensile.learning.encoding.encoded_parts import Part, encode_parts
from indb_tensile.learning.encoding.feature_options import TOKENS, FeatureOptions
from indb_tensile.learning.encoding.pair_encoding import item_ranges
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.encoding.row_weights import WeightOptions, Weights, row_weights
from indb_tensile.learning.encoding.targets import (
    TargetEncoding,
)
from indb_tensile.learning.evaluation.input_bins import input_figures
from indb_tensile.learning.forecasting.forecast_table import ForecastRows, WindowTable, window_table
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.networks.hyperparams import TrainingSettings, settings_of
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.networks.requirements import AvailableMemory
from indb_tensile.learning.networks.training_length import FEWEST_VALID_ROWS
from indb_tensile.learning.networks.weighted_losses import loss_for
from indb_tensile.learning.relation.locked_relation import Connection, ReadLimits
from indb_tensile.learning.relation.memory_estimate import (
    MemoryEstimate,
    RowMemoryLimits,
    Statistics,
    estimate_memory,
)
from indb_tensile.learning.relation.relation_reader import read, require_same_numbers
from indb_tensile.learning.reports.datareport import report_data
from indb_tensile.learning.reports.report_facts import Fact, ReportInput
from indb_tensile.learning.reports.series_report import report_series
from indb_tensile.learning.storage.columns import Column, ColumnRows, Rows, TableData
from indb_tensile.learning.storage.splits import Parts, Split
from indb_tensile.learning.training.checked_options import CheckedOptions
from indb_tensile.learning.training.earlystop import EarlyStop
from indb_tensile.learning.training.encoder_fitting import fit_encoders
from indb_tensile.learning.training.learnable_rows import LearnableRows, chosen_features, learnable_rows
from indb_tensile.learning.training.network_building import build_module, fit_first_weights, require_batches
from indb_tensile.learning.training.network_choice import auto_reason
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.learning.training.row_division import (
    divide_rows,
    missing_divider_error,
    part_sections,
    require_key,
    row_numbers,
    stored_rule,
    test_share,
)
from indb_tensile.learning.training.starting_weights import StartingWeights
from indb_tensile.request.estimator_rules import check_ensemble, check_targets_of_estimator
from indb_tensile.request.task_rules import predicts_target


def prepare(
    connection: Connection,
    spec: JobSpec,
    *,
    owner_oid: int | None = None,
    snapshot: SnapshotTable | None = None,
    room: AvailableMemory | None = None,
    limits: ReadLimits | None = None,
    memory: RowMemoryLimits | None = None,
    tell: Callable[[MemoryEstimate], None] = lambda _: None,
    start: StartingWeights | None = None,
    network: RegisteredNetwork | None = None,
) -> Prepared:
    """Check the request, read the table in one transaction, and build the network and its data.

    `connection` is the reader's, as for `relation_reader.read`. If `owner_oid` is given, that role must be able to
    read the columns. If `snapshot` is given, that table is read instead of the relation; its rows belong to the job,
    so no role is checked. `tell` is called with the estimate of the rows' memory before they are read, and again when
    the first arrays have given their shapes. If the estimate exceeds the memory of `memory`, the rows go to
    `limits.overflow`; if it exceeds the disk's space too, they are not read. With `start` the network begins with the
    weights of that version.

    Raises RequestError and its subclasses for faults that the user can correct, HostMemoryError if there is too
    little memory now, and the errors of `assemble`. `network` is the registered network of the architecture.
    """
    if snapshot is not None:
        owner_oid, spec = None, _of_snapshot(spec, snapshot)
    checked = CheckedOptions.of(spec)
    _require_part_tables(spec, checked.split)
    spec = _without_later_columns(spec, (checked.split.withheld, checked.weights.column))
    share = test_share(checked.split, snapshot)
    table = read(
        connection,
        spec.relation,
        partial(_columns_to_read, spec, checked),
        owner_oid=owner_oid,
        key=checked.split.key if snapshot is None else snapshot.key,
        part_tables=spec.part_tables if snapshot is None else {},
        label_columns=spec.target_columns if spec.task is Task.MULTILABEL else (),
        has_unlike_texts=lambda name: name not in spec.target_columns and checked.options.encoding(name) == TOKENS,
        limits=limits,
        on_statistics=partial(_check_estimate, spec, checked, share, memory, tell),
    )
    if snapshot is not None:
        table = replace(table, sections=part_sections(table, snapshot, checked.split.tables))
    if spec.task is Task.FORECAST:
        return assemble_windows(window_table(table, spec), room)
    return assemble(table, spec, room, consume=True, start=start, network=network)


def _columns_to_read(spec: JobSpec, checked: CheckedOptions, described: tuple[Column, ...]) -> tuple[str, ...]:
    """Return the features and the target, and the columns that divide and weigh the rows."""
    require_same_numbers(spec.column_numbers, described, f"{spec.relation.schema}.{spec.relation.name}")
    features = chosen_features(described, spec, checked.options)
    others = _other_columns(checked, [column.name for column in described])
    return tuple(dict.fromkeys((*features, *spec.target_columns, *others)))


def _check_estimate(
    spec: JobSpec,
    checked: CheckedOptions,
    share: float,
    memory: RowMemoryLimits | None,
    tell: Callable[[MemoryEstimate], None],
    described: tuple[Column, ...],
    statistics: Statistics,
) -> bool:
    """Estimate the memory of the rows, and return whether they fit. `share` is that of the rows that test.

    Raises the errors of `MemoryEstimate.check`.
    """
    estimate = estimate_memory(
        statistics,
        targets=spec.target_columns if predicts_target(spec.task) else (),
        described=described,
        options=checked.options,
        test_size=share,
        features=spec.features or (),
    )
    tell(estimate)
    if memory is None:
        return True
    estimate.check(f"{spec.relation.schema}.{spec.relation.name}", memory)
    return estimate.fits_memory(memory)


def _of_snapshot(spec: JobSpec, snapshot: SnapshotTable) -> JobSpec:
    """Return the specification of a training that reads the table of a snapshot."""
    exclude = tuple(name for name in spec.exclude if name in snapshot.columns)
    return replace(spec, relation=snapshot.relation, exclude=exclude, column_numbers={})


def _other_columns(checked: CheckedOptions, names: Sequence[str]) -> list[str]:
    """Return the columns that divide and weigh the rows. Refuses a table without one of them, or without the key."""
    divider, weight = checked.split.divider, checked.weights.column
    if divider is not None and divider not in names:
        raise missing_divider_error(divider)
    if weight is not None and weight not in names:
        raise _missing_weight_error(weight)
    require_key(checked.split, names)
    return [name for name in (divider, weight) if name is not None]


def _require_part_tables(spec: JobSpec, split: Split) -> None:
    """Refuse a specification whose tables of parts are not those of its split."""
    if set(spec.part_tables) != set(split.tables):
        tables, named = " and ".join(spec.part_tables) or "no part", " and ".join(split.tables) or "no part"
        message = f"the specification has tables for {tables}, and its split names tables for {named}"
        raise RequestError(message, hint="Enqueue jobs with tensile_train, which writes both.")


def _without_later_columns(spec: JobSpec, withheld: tuple[str | None, ...]) -> JobSpec:
    """Return the specification with the features that the table had when the job was enqueued, in the table's order.

    Otherwise a column that was added while the job waited would become a feature, and an excluded column that was
    dropped would end the job.
    """
    if not spec.column_numbers:
        return spec
    numbered = sorted((number, name) for name, number in spec.column_numbers.items())
    features = spec.features or tuple(name for _, name in numbered if name not in (*spec.target_columns, *withheld))
    return replace(spec, features=features, exclude=())


def assemble_windows(windows: WindowTable, room: AvailableMemory | None = None) -> Prepared:
    """Prepare a training that forecasts, from the windows of its series."""
    prepared = assemble(windows.table, windows.spec, room, consume=True, forecast=windows.rows)
    return replace(prepared, membership={"kind": "time", **windows.rows.facts()})


def assemble(
    table: TableData,
    spec: JobSpec,
    room: AvailableMemory | None = None,
    *,
    consume: bool = False,
    start: StartingWeights | None = None,
    forecast: ForecastRows | None = None,
    network: RegisteredNetwork | None = None,
) -> Prepared:
    """Prepare a training from a table that was already read. `forecast` are the series of a table of windows.

    With `consume` the table's columns are emptied and their memory is freed. Raises MemoryLimitError or
    HostMemoryError for a network that does not fit in `room`, before the network is allocated.
    """
    checked = CheckedOptions.of(spec)
    learnable, columns = learnable_rows(table, spec, checked.options, {} if start is None else start.image_forms)
    table, known = learnable.table, learnable.known
    parts = divide_rows(table, known, checked.split)
    train, valid, test = row_numbers(table, known, parts)
    fitted = fit_encoders(learnable, columns, parts, train, spec, checked, start, forecast, network)
    del columns  # which has copies of the documents' values
    spec, target, features, preprocessor = fitted.spec, fitted.target, fitted.features, fitted.preprocessor
    architecture = _completed(fitted.architecture, preprocessor, forecast, network)
    settings = _settings_for(spec, architecture, target, len(train), starts=start is not None)
    module = build_module(architecture, preprocessor, settings, room, start, network)
    require_batches(module, len(train), settings)
    report = _report(learnable, parts, checked.split, preprocessor, fitted.options, forecast)
    held_out, membership = table.take(test), stored_rule(table, spec, parts)  # before the columns are consumed
    inputs = {} if forecast is not None else input_figures(table.columns, preprocessor, train)
    weights = _weights(table, known, checked.weights, target, parts)
    encoded = _encode(learnable, preprocessor, (train, valid, test), weights, settings, consume=consume)
    fit_first_weights(module, encoded[0].numbers, start, features, preprocessor)
    return Prepared(
        module=module,
        loss=loss_for(module, spec.task, settings, weighted=checked.weights.used, forecast=target.forecast),
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
        unlabeled_rows=learnable.unlabeled_rows,
        skipped=learnable.images.skipped,
        membership=membership,
        report=report,
        chosen=_chosen(spec, settings),
        init_from=None if start is None else start.to_json(),
        auto_reason=auto_reason(spec, architecture, len(train), fitted.kinds, fitted.texts),
        forecast=forecast,
        network=network,
        inputs=inputs,
        buckets=length_buckets(encoded[0], preprocessor, settings.length_buckets, settings.batch_size),
    )


def _encode(
    learnable: LearnableRows,
    preprocessor: Preprocessor,
    parts: Sequence[Rows],
    weights: Sequence[Weights] | None,
    settings: TrainingSettings,
    *,
    consume: bool,
) -> list[Part]:
    """Return the rows of each part. With `consume` the table's columns are emptied, else they stay as they are."""
    table, images = learnable.table, learnable.images
    if not consume:
        table = replace(table, columns=dict(table.columns))
    table.columns.update(images.columns)
    mixed = settings.mixup is not None
    return encode_parts(table, preprocessor, parts, weights, consume=consume, mixed=mixed, pending=images.pending)


def _report(
    learnable: LearnableRows,
    parts: Parts,
    split: Split,
    preprocessor: Preprocessor,
    options: FeatureOptions,
    forecast: ForecastRows | None,
) -> tuple[Fact, ...]:
    """Return the report on the data of a table, or of the series of a forecast."""
    if forecast is not None:
        return report_series(forecast)
    return report_data(
        ReportInput(
            table=learnable.table,
            known=learnable.known,
            parts=parts,
            split=split,
            preprocessor=preprocessor,
            options=options,
            skipped=learnable.images.skipped,
            unlabeled_rows=learnable.unlabeled_rows,
        )
    )


def _completed(
    architecture: dict[str, Any],
    preprocessor: Preprocessor,
    forecast: ForecastRows | None,
    network: RegisteredNetwork | None,
) -> dict[str, Any]:
    """Return the architecture with the layout of encoded rows and what identifies a network of a library."""
    layout = preprocessor.layout | preprocessor.part_layout | ({} if forecast is None else forecast.recipe.layout)
    if (pair := preprocessor.target.pair) is not None:
        parts = [(part.feature, part.begin, part.end) for part in preprocessor.parts]
        layout |= {"item_ranges": list(item_ranges(parts, pair.items))}
    own = {} if network is None else {"digest": network.digest}
    return architectures.with_layout(architecture, layout) | own | architectures.library_of(architecture)


def _settings_for(
    spec: JobSpec, architecture: dict[str, Any], target: TargetEncoding, rows: int, *, starts: bool
) -> TrainingSettings:
    """Return the settings of the training. Refuses a network that cannot learn this target, or no ensemble."""
    settings = settings_of(spec, architecture, rows, starts=starts)
    check_targets_of_estimator(architecture, target.task, several=target.outputs > 1)
    check_ensemble(architecture, spec.hyperparams, starts=starts)
    return settings


def _weights(
    table: TableData, known: Rows, options: WeightOptions, target: TargetEncoding, parts: Parts
) -> list[Weights] | None:
    """Return the weights of the training, validation and test rows, or None if all rows weigh the same."""
    if not options.used:
        return None
    if options.column is not None and options.column not in table.columns:
        raise _missing_weight_error(options.column)
    column = None if options.column is None else ColumnRows(table.columns[options.column], known)
    goal = ColumnRows(table.columns[target.name], known)
    return row_weights(options, target, goal, column, (parts.train, parts.valid, parts.test), table.storage)


def _missing_weight_error(name: str) -> MissingError:
    hint = "Name another column as weight."
    return MissingError(f'hyperparams: column "{name}", the weight, does not exist in the table', hint=hint)


def _chosen(spec: JobSpec, settings: TrainingSettings) -> tuple[str, ...]:
    """Return the names of the settings that were not requested but chosen for the number of rows."""
    ensemble = settings.ensemble > 1 and "ensemble" not in spec.hyperparams
    return _chosen_by_default(spec) + (("ensemble",) if ensemble else ())


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
    if settings.schedule == "plateau" and not valid_rows:
        hint = "Add rows, give a larger valid_size, or choose another schedule."
        raise DataError("none of the rows falls to the validation part, which schedule plateau needs", hint=hint)
    return state
