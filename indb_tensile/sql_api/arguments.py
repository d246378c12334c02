"""Reads the arguments of a training besides its table: network, hyper-parameters, split, metric and limits."""

import json
from itertools import pairwise
from typing import Any

from .errors import INVALID, RefusalError, shown, told_by_database
from .layers import check_layers
from .options import ARCHITECTURES, EARLY_STOP, HYPERPARAMS, METRICS, MOST_PARAMETERS, ONLY_WITH, SPLIT
from .parameters import check_parameters
from .request import read_integer, read_text
from .spi import Json, Plpy, fetch


def architecture(request: Json, before: Json) -> Json:
    """Return the network's declaration with checked parameters.

    The argument is a name, a list of layers, or a JSON object with the key "type". Without the argument, the network
    of the last run is used, or else `auto`, which chooses a network for the columns.
    """
    argument = read_text(request, "architecture")
    declaration = before.get("architecture", {"type": "auto"}) if argument is None else _read_architecture(argument)
    kind = declaration.get("type")
    if kind is None:
        message = f'architecture {shown(declaration)} lacks the key "type"'
        raise RefusalError(INVALID, message, hint=_KNOWN_ARCHITECTURES)
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        type_text = f'"{kind}"' if isinstance(kind, str) else shown(kind)
        raise RefusalError(INVALID, f"unknown architecture {type_text}", hint=_KNOWN_ARCHITECTURES)
    options = {name: value for name, value in declaration.items() if name != "type"}
    checked = check_parameters(f"architecture {kind}", options, ARCHITECTURES[kind])
    if kind == "layers":
        check_layers(checked["layers"])
    _check_widths(kind, checked.get("hidden") or [])
    return {"type": kind} | checked


def _check_widths(kind: str, hidden: list[int]) -> None:
    """Refuse a network whose hidden layers alone have too many weights.

    The refusal is immediate; a worker counts all weights later.
    """
    weights = sum(inputs * outputs for inputs, outputs in pairwise(hidden))
    if weights > MOST_PARAMETERS:
        message = f"architecture {kind}: the hidden layers have {weights} weights, more than {MOST_PARAMETERS}"
        raise RefusalError(INVALID, message, hint="Make its layers narrower.")


def hyperparams(request: Json, before: Json) -> Json:
    """Return the hyper-parameters of the request, or else those of the last run."""
    values = check_parameters("hyperparams", _inherited_object(request, "hyperparams", before), HYPERPARAMS)
    effective = {name: rule["default"] for name, rule in HYPERPARAMS.items()} | values
    for name, (switch, allowed) in ONLY_WITH.items():
        if name in values and effective[switch] not in allowed:
            hint = f'Leave it out, or set "{switch}" to {" or ".join(allowed)}.'
            message = f'hyperparams: "{name}" means nothing with {switch} {effective[switch]}'
            raise RefusalError(INVALID, message, hint=hint)
    if effective["nesterov"] and values.get("momentum") == 0:
        raise RefusalError(INVALID, 'hyperparams: "nesterov" needs a momentum above 0', hint='Set "momentum" to 0.9.')
    return values


def split(request: Json, before: Json) -> Json:
    """Return the options of the split, or else those of the last run.

    Refuses contradictory options, and shares that leave no rows to train on. divider.py checks the named columns.
    """
    options = check_parameters("split", _inherited_object(request, "split", before), SPLIT)
    for name, other in (("column", "last"), ("column", "by"), ("column", "test_size"), ("last", "test_size")):
        if name in options and other in options:
            message = f'split: "{name}" and "{other}" contradict each other'
            raise RefusalError(INVALID, message, hint="Leave one of them out.")
    if "by" in options and "last" not in options:
        hint = f'Give the share of the rows that test, as in {{"last": 0.2, "by": {json.dumps(options["by"])}}}.'
        raise RefusalError(INVALID, 'split: "by" is given without "last"', hint=hint)
    shares = {name: rule["default"] for name, rule in SPLIT.items()} | options
    size = "last" if "last" in options else "test_size"
    if "column" not in options and shares[size] + shares["valid_size"] >= 1:
        message = f"split: {size} {shares[size]} and valid_size {shares['valid_size']} leave no rows to train on"
        raise RefusalError(INVALID, message, hint="Keep their sum below 1.")
    return options


def early_stop(request: Json, before: Json, task: str, parts: Json) -> Json | None:
    """Return the options of early stopping, or else those of the last run, or None.

    An empty object means early stopping with default options; with None the worker decides. `parts` is the split,
    which must have validation rows if early stopping is requested.
    """
    argument = _own_or_inherited(request, "early_stop", before)
    if argument is None:
        return None
    options = check_parameters("early_stop", argument, EARLY_STOP)
    off = options.get("on") is False
    others = [name for name in options if name != "on"]
    if off and others:
        hint = f'Leave "{others[0]}" out, or leave "on" out.'
        raise RefusalError(INVALID, f'early_stop: "{others[0]}" means nothing with "on" false', hint=hint)
    if not off and parts.get("valid_size") == 0:
        message = "early_stop needs validation rows, and the split's valid_size is 0"
        hint = "Give a valid_size above 0, or switch it off: early_stop => '{\"on\": false}'."
        raise RefusalError(INVALID, message, hint=hint)
    known = ("loss", *METRICS[task])
    if options.get("metric", "loss") not in known:
        hint = f"Known for {task}: {', '.join(known)}."
        raise RefusalError(INVALID, f'early_stop: unknown metric "{options["metric"]}"', hint=hint)
    return options


def never_stops(spec: Json) -> bool:
    """Return whether early stopping is off only because the split has no validation rows."""
    by_default = spec["early_stop"] is None and "epochs" not in spec["hyperparams"]
    return by_default and bool(spec["split"].get("valid_size") == 0)


def metric(request: Json, before: Json, task: str) -> str | None:
    """Return the metric that versions are compared by, or None for the task's default.

    Without the argument, the metric of the last run is used if the task has it.
    """
    argument = read_text(request, "metric")
    if argument is None:
        inherited: str | None = before.get("metric")
        return inherited if inherited in METRICS[task] else None
    if argument not in METRICS[task]:
        hint = f"For {task}: {', '.join(METRICS[task])}."
        raise RefusalError(INVALID, f'unknown metric "{argument}" for {task}', hint=hint)
    return argument


def memory_limit(plpy: Plpy, request: Json) -> int | None:
    """Return the memory limit in bytes, from a size such as '512 MB'."""
    text = read_text(request, "memory_limit")
    if text is None:
        return None
    refusal = RefusalError(INVALID, f'memory_limit is "{text}"', hint="Give a size above 0, such as '512 MB'.")
    try:
        size_bytes = int(fetch(plpy, SIZE, text)[0]["bytes"])
    except plpy.SPIError as error:
        database_error = told_by_database(error)
        if not database_error["sqlstate"].startswith("22"):  # not about the text, but for example a cancel request
            raise
        refusal.error["detail"] = f"PostgreSQL says: {database_error['message']}."
        raise refusal from None
    if size_bytes <= 0:
        raise refusal
    return size_bytes


def max_runtime(request: Json) -> int | None:
    """Return the time limit in whole seconds, or None."""
    seconds = request.get("max_runtime_s")
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 1 <= seconds <= _LONGEST_RUNTIME_S:
        message = f"max_runtime is {shown(seconds)} seconds"
        hint = "Give an interval of a second or more."
        if isinstance(seconds, int | float) and seconds > _LONGEST_RUNTIME_S:
            hint = f"Give an interval of {_LONGEST_RUNTIME_S} seconds or less, or leave it out for no limit."
        raise RefusalError(INVALID, message, hint=hint)
    return int(seconds)


def priority(request: Json) -> int:
    """Return the job's priority in the queue, 0 by default."""
    value = read_integer(request, "priority") or 0
    if not -1000 <= value <= 1000:
        hint = "Give a number from -1000 to 1000; jobs of higher priority go first."
        raise RefusalError(INVALID, f"priority is {value}", hint=hint)
    return value


def _read_architecture(text: str) -> Json:
    """Return the declaration as an object.

    A name stands for an object with this type only, a list for an object with these layers.
    """
    if not text.lstrip().startswith(("{", "[")):
        return {"type": text}
    try:
        decoded = json.loads(text)
        return {"type": "layers", "layers": decoded} if isinstance(decoded, list) else dict(decoded)
    except (ValueError, RecursionError) as error:
        message = f"architecture is not valid JSON: {error}"
        raise RefusalError(INVALID, message, hint=_KNOWN_ARCHITECTURES) from None


def _inherited_object(request: Json, key: str, before: Json) -> Any:
    """Return an argument that should be a JSON object, or an empty object if it was never given."""
    value = _own_or_inherited(request, key, before)
    return {} if value is None else value


def _own_or_inherited(request: Json, key: str, before: Json) -> Any:
    """Return the request's argument, or else that of the last run."""
    value = request.get(key)
    return before.get(key) if value is None else value


SIZE = "select pg_catalog.pg_size_bytes($1::text) as bytes"
_LONGEST_RUNTIME_S = 2**31 - 1
_KNOWN_ARCHITECTURES = (
    f"Give a name ({', '.join(ARCHITECTURES)}), a JSON object such as "
    '{"type": "mlp", "hidden": [64, 64], "dropout": 0.1}, or a list of layers such as '
    '[{"type": "linear", "out": 64}, {"type": "relu"}, {"type": "linear"}].'
)
