"""What a training may be given beside its table: network, hyper-parameters, split, metric, limits."""

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
    """The network: a name, or a JSON object with the key "type"; left out, the one before, else chosen by columns."""
    given = read_text(request, "architecture")
    wanted = before.get("architecture", {"type": "auto"}) if given is None else _read_architecture(given)
    kind = wanted.get("type")
    if kind is None:
        message = f'architecture {shown(wanted)} lacks the key "type"'
        raise RefusalError(INVALID, message, hint=_KNOWN_ARCHITECTURES)
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        named = f'"{kind}"' if isinstance(kind, str) else shown(kind)
        raise RefusalError(INVALID, f"unknown architecture {named}", hint=_KNOWN_ARCHITECTURES)
    options = {name: value for name, value in wanted.items() if name != "type"}
    checked = check_parameters(f"architecture {kind}", options, ARCHITECTURES[kind])
    if kind == "layers":
        check_layers(checked["layers"])
    _check_widths(kind, checked.get("hidden") or [])
    return {"type": kind} | checked


def _check_widths(kind: str, hidden: list[int]) -> None:
    """Refuse at once what has too many weights between its declared layers alone; a worker counts all of them."""
    weights = sum(above * below for above, below in pairwise(hidden))
    if weights > MOST_PARAMETERS:
        message = f"architecture {kind}: the hidden layers have {weights} weights, more than {MOST_PARAMETERS}"
        raise RefusalError(INVALID, message, hint="Make its layers narrower.")


def hyperparams(request: Json, before: Json) -> Json:
    """How to train, or as before."""
    given = check_parameters("hyperparams", _object(request, "hyperparams", before), HYPERPARAMS)
    values = {name: rule["default"] for name, rule in HYPERPARAMS.items()} | given
    for name, (switch, allowed) in ONLY_WITH.items():
        if name in given and values[switch] not in allowed:
            hint = f'Leave it out, or set "{switch}" to {" or ".join(allowed)}.'
            message = f'hyperparams: "{name}" means nothing with {switch} {values[switch]}'
            raise RefusalError(INVALID, message, hint=hint)
    if values["nesterov"] and given.get("momentum") == 0:
        raise RefusalError(INVALID, 'hyperparams: "nesterov" needs a momentum above 0', hint='Set "momentum" to 0.9.')
    return given


def split(request: Json, before: Json) -> Json:
    """What divides the rows, or as before; rows to train on must be left. divider.py looks at the columns named."""
    options = check_parameters("split", _object(request, "split", before), SPLIT)
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
    """An empty object is early stopping with its defaults; nothing at all is as before, else left to the worker.

    `parts` is the split: it must have validation rows where early stopping is asked for.
    """
    given = _inherited(request, "early_stop", before)
    if given is None:
        return None
    options = check_parameters("early_stop", given, EARLY_STOP)
    off = options.get("on") is False
    beside = [name for name in options if name != "on"]
    if off and beside:
        hint = f'Leave "{beside[0]}" out, or leave "on" out.'
        raise RefusalError(INVALID, f'early_stop: "{beside[0]}" means nothing with "on" false', hint=hint)
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
    """Whether training would stop early by default, had it validation rows to judge by."""
    by_default = spec["early_stop"] is None and "epochs" not in spec["hyperparams"]
    return by_default and bool(spec["split"].get("valid_size") == 0)


def metric(request: Json, before: Json, task: str) -> str | None:
    """The figure that versions are compared by, or as before where the task still has it."""
    given = read_text(request, "metric")
    if given is None:
        inherited: str | None = before.get("metric")
        return inherited if inherited in METRICS[task] else None
    if given not in METRICS[task]:
        hint = f"For {task}: {', '.join(METRICS[task])}."
        raise RefusalError(INVALID, f'unknown metric "{given}" for {task}', hint=hint)
    return given


def memory_limit(plpy: Plpy, request: Json) -> int | None:
    """Bytes, from a size such as '512 MB'."""
    text = read_text(request, "memory_limit")
    if text is None:
        return None
    refusal = RefusalError(INVALID, f'memory_limit is "{text}"', hint="Give a size above 0, such as '512 MB'.")
    try:
        size_bytes = int(fetch(plpy, SIZE, text)[0]["bytes"])
    except plpy.SPIError as error:
        told = told_by_database(error)
        if not told["sqlstate"].startswith("22"):  # not about the text: a cancel, say
            raise
        refusal.error["detail"] = f"PostgreSQL says: {told['message']}."
        raise refusal from None
    if size_bytes <= 0:
        raise refusal
    return size_bytes


def max_runtime(request: Json) -> int | None:
    """Whole seconds."""
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
    """The job's place in the queue: 0 unless given."""
    given = read_integer(request, "priority") or 0
    if not -1000 <= given <= 1000:
        hint = "Give a number from -1000 to 1000; jobs of higher priority go first."
        raise RefusalError(INVALID, f"priority is {given}", hint=hint)
    return given


def _read_architecture(given: str) -> Json:
    """A name stands for the object that has nothing but this type, a list for the object with these layers."""
    if not given.lstrip().startswith(("{", "[")):
        return {"type": given}
    try:
        read = json.loads(given)
        return {"type": "layers", "layers": read} if isinstance(read, list) else dict(read)
    except (ValueError, RecursionError) as error:
        message = f"architecture is not valid JSON: {error}"
        raise RefusalError(INVALID, message, hint=_KNOWN_ARCHITECTURES) from None


def _object(request: Json, key: str, before: Json) -> Any:
    """What should be a JSON object, empty where nothing was ever given."""
    given = _inherited(request, key, before)
    return {} if given is None else given


def _inherited(request: Json, key: str, before: Json) -> Any:
    given = request.get(key)
    return before.get(key) if given is None else given


SIZE = "select pg_catalog.pg_size_bytes($1::text) as bytes"
_LONGEST_RUNTIME_S = 2**31 - 1
_KNOWN_ARCHITECTURES = (
    f"Give a name ({', '.join(ARCHITECTURES)}), a JSON object such as "
    '{"type": "mlp", "hidden": [64, 64], "dropout": 0.1}, or a list of layers such as '
    '[{"type": "linear", "out": 64}, {"type": "relu"}, {"type": "linear"}].'
)
