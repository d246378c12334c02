"""Reads the arguments of a training besides its table: network, hyper-parameters, split, metric and limits.

The rules are those of `indb_tensile/request`. Here an argument that the request leaves out is that of the last run.
"""

from collections.abc import Collection, Sequence
from typing import Any

from ..errors import RequestError
from ..request.early_stop_rules import check_early_stop
from ..request.hyperparam_rules import check_hyperparams
from ..request.job_rules import check_priority
from ..request.misplaced_parameters import refuse_misplaced
from ..request.network_rules import check_architecture, read_architecture
from ..request.preprocess_rules import check_preprocess, check_preprocess_columns
from ..request.request_fields import read_integer, read_text
from ..request.split_rules import check_split
from ..request.task_rules import METRICS, check_metric
from .refusals import database_error_fields
from .spi import Json, Plpy, fetch
from .training_table import Table, TableColumn


def architecture(request: Json, before: Json) -> Json:
    """Return the network's declaration with checked parameters.

    The argument is a name, a list of layers, or a JSON object with the key "type". Without the argument, the network
    of the last run is used, or else `auto`, which chooses a network for the columns.
    """
    argument = read_text(request, "architecture")
    declared = before.get("architecture", {"type": "auto"}) if argument is None else read_architecture(argument)
    refuse_misplaced("architecture", declared)
    return check_architecture(declared)


def hyperparams(request: Json, before: Json) -> Json:
    """Return the hyper-parameters of the request, or else those of the last run."""
    return check_hyperparams(_placed(request, "hyperparams", before))


def preprocess(request: Json, before: Json, table: Table, features: Sequence[TableColumn]) -> Json:
    """Return the options of preprocessing of the request, or else those of the last run."""
    options = check_preprocess(_inherited_object(request, "preprocess", before))
    types = {column.name: (column.type, column.kind) for column in features}
    check_preprocess_columns(options, types, str(table), table.column_names)
    return options


def documents(request: Json, before: Json) -> Collection[str]:
    """Return the json columns of which `preprocess` chooses paths."""
    return list(check_preprocess(_placed(request, "preprocess", before)).get("paths", {}))


def split(request: Json, before: Json) -> Json:
    """Return the options of the split, or else those of the last run. split_column.py checks the named columns."""
    return check_split(_inherited_object(request, "split", before))


def early_stop(request: Json, before: Json, task: str, parts: Json) -> Json | None:
    """Return the options of early stopping, or else those of the last run, or None.

    An empty object means early stopping with default options; with None the worker decides. `parts` is the split,
    which must have validation rows if early stopping is requested.
    """
    argument = _own_or_inherited(request, "early_stop", before)
    refuse_misplaced("early_stop", argument)
    return None if argument is None else check_early_stop(argument, task, parts)


def never_stops(spec: Json) -> bool:
    """Return whether early stopping is off only because the split has no validation rows."""
    by_default = spec["early_stop"] is None and "epochs" not in spec["hyperparams"]
    stops = spec["architecture"]["type"] != "linear"  # which has no epochs
    return stops and by_default and bool(spec["split"].get("valid_size") == 0)


def metric(request: Json, before: Json, task: str) -> str | None:
    """Return the metric that versions are compared by, or None for the task's default.

    Without the argument, the metric of the last run is used if the task has it.
    """
    argument = read_text(request, "metric")
    if argument is None:
        inherited: str | None = before.get("metric")
        return inherited if inherited in METRICS[task] else None
    return check_metric(task, argument)


def memory_limit(plpy: Plpy, request: Json) -> int | None:
    """Return the memory limit in bytes, from a size such as '512 MB'."""
    text = read_text(request, "memory_limit")
    if text is None:
        return None
    refusal = RequestError(f'memory_limit is "{text}"', hint="Give a size above 0, such as '512 MB'.")
    try:
        size_bytes = int(fetch(plpy, SIZE, text)[0]["bytes"])
    except plpy.SPIError as error:
        database_error = database_error_fields(error)
        if not database_error["sqlstate"].startswith("22"):  # not about the text, but for example a cancel request
            raise
        refusal.detail = f"PostgreSQL says: {database_error['message']}."
        raise refusal from None
    if size_bytes <= 0:
        raise refusal
    return size_bytes


def priority(request: Json) -> int:
    """Return the job's priority in the queue, 0 by default."""
    return check_priority(read_integer(request, "priority") or 0)


def _placed(request: Json, key: str, before: Json) -> Any:
    """Return an argument that should be a JSON object, once none of its parameters belongs to another argument."""
    value = _inherited_object(request, key, before)
    refuse_misplaced(key, value)
    return value


def _inherited_object(request: Json, key: str, before: Json) -> Any:
    """Return an argument that should be a JSON object, or an empty object if it was never given."""
    value = _own_or_inherited(request, key, before)
    return {} if value is None else value


def _own_or_inherited(request: Json, key: str, before: Json) -> Any:
    """Return the request's argument, or else that of the last run."""
    value = request.get(key)
    return before.get(key) if value is None else value


SIZE = "select pg_catalog.pg_size_bytes($1::text) as bytes"
