"""Checks a search over trainings and enqueues it as the caller.

A search is enqueued like a training. The arguments of its specification have the first value of every dimension
(request/search_rules.py), and the key `search` has the space and the options. Every choice, and both ends of every
range, are checked here, one after the other; whether several of them fit together shows when a trial has them.
"""

import json

from ..errors import RequestError
from ..request.abbreviation import shown
from ..request.estimator_rules import check_ensemble, check_estimator, check_targets_of_estimator
from ..request.hyperparam_rules import check_hyperparams, check_schedule
from ..request.loss_rules import check_loss
from ..request.network_rules import check_architecture, read_architecture
from ..request.preprocess_rules import check_preprocess, check_preprocess_columns
from ..request.rank_rules import check_alone
from ..request.request_fields import read_text
from ..request.search_rules import (
    DEFAULT_ARCHITECTURE,
    DEFAULT_HYPERPARAMS,
    DEFAULT_PARAMETERS,
    SEARCHED,
    adapted,
    check_idle,
    check_search,
    check_space,
    dimensions,
    first_picks,
    resolve,
    variants,
)
from ..request.token_rules import check_length_buckets, check_tokens
from .class_weights import check_class_weights
from .feature_columns import used_columns
from .image_columns import check_image_options
from .inherited_arguments import LastRun
from .spi import Json, Plpy, callers_path, fetch
from .training_request import enqueue
from .training_table import Table
from .weight_column import check_weight_column


def search(plpy: Plpy, request: Json, last: LastRun | None = None) -> Json:
    """Check a search and enqueue it. Returns its number, which is that of a job."""
    space = check_space(_space(request))
    if not dimensions(space):
        space = _default_space(plpy, space)
    options = check_search(_options(request), space)
    first = resolve(space, first_picks)
    arguments: Json = {name: first[name] for name in SEARCHED if name in first}
    if "architecture" in arguments:
        arguments["architecture"] = json.dumps(arguments["architecture"])

    def complete(spec: Json, table: Table) -> None:
        _require_validation(spec)
        if spec.get("devices", 1) > 1:
            hint = "Leave devices out: the trials of a search train at the same time, on all devices."
            raise RequestError(
                f"devices is {spec['devices']}, and each trial of a search trains on one device", hint=hint
            )
        check_idle(space)
        resolved = list(variants(space))
        for variant in resolved:
            _check_variant(variant, spec, space, table)
        weights = [variant.get("hyperparams", {}).get("class_weight") for variant in resolved]
        with callers_path(plpy, read_text(request, "search_path")):
            check_class_weights(plpy, table, spec, weights)
        _pin_start(plpy, spec)
        spec["search"] = options | {"space": space}

    return enqueue(plpy, request | arguments, last, complete)


def request_of(stored: Json) -> Json:
    """Return the part of a request from which a stored search came."""
    space = stored.get("space") if isinstance(stored, dict) else None
    if not isinstance(space, dict):
        hint = "Start a search with tensile_search(...), which writes a complete one."
        raise RequestError("the stored specification of the search is not complete", hint=hint)
    arguments: Json = {name: space[name] for name in SEARCHED if name in space}
    if "architecture" in arguments:
        arguments["architecture"] = json.dumps(arguments["architecture"])
    return arguments | {
        "search": {name: value for name, value in stored.items() if name != "space" and value is not None}
    }


def _space(request: Json) -> Json:
    """Return the arguments that may have dimensions, without those that the request leaves out."""
    space = {name: request[name] for name in SEARCHED if request.get(name) is not None}
    architecture = read_text(request, "architecture")
    if architecture is not None:
        space["architecture"] = _with_names(read_architecture(architecture))
    return space


def _with_names(architecture: Json) -> Json:
    """Return the architecture in which a choice that is a name is an object, as `read_architecture` reads a name."""
    choices = architecture.get("choices")
    if not isinstance(choices, list):
        return architecture
    named = [{"type": choice} if isinstance(choice, str) else choice for choice in choices]
    return architecture | {"choices": named}


def _default_space(plpy: Plpy, space: Json) -> Json:
    """Return a space for a request in which nothing varies, and say so."""
    architecture = space.get("architecture", DEFAULT_ARCHITECTURE)
    defaults = DEFAULT_PARAMETERS.get(architecture.get("type"), DEFAULT_HYPERPARAMS)
    if defaults is not DEFAULT_HYPERPARAMS:
        chosen = space | {"architecture": defaults | architecture}
    else:
        hyperparams = defaults | (space.get("hyperparams") or {})
        chosen = space | {"architecture": architecture, "hyperparams": hyperparams}
    varying = ", ".join(dimension.name for dimension in dimensions(chosen) if "[" not in dimension.name)
    if not varying:
        raise RequestError(
            "nothing varies in this search",
            detail=f"The arguments fix what varies by default: {', '.join(defaults)}.",
            hint='Let one vary: hyperparams => \'{"learning_rate": {"range": [0.0001, 0.01], "log": true}}\'.',
        )
    plpy.notice(f"nothing varies in the arguments, so the search varies {varying}")
    return chosen


def _options(request: Json) -> Json:
    options = request.get("search")
    if not isinstance(options, dict):
        raise RequestError(f"the options of the search are {shown(options)}, not a JSON object")
    prune = options.get("prune")
    if isinstance(prune, str) and prune.lstrip().startswith("{"):
        options = options | {"prune": _from_text(prune)}
    return options


def _from_text(text: str) -> Json:
    try:
        return dict(json.loads(text))
    except (ValueError, RecursionError) as error:
        hint = 'Give a name, or a JSON object such as {"type": "asha", "factor": 3, "rungs": 3}.'
        raise RequestError(f"prune is not valid JSON: {error}", hint=hint) from None


def _pin_start(plpy: Plpy, spec: Json) -> None:
    """Let all trials start from the version that is deployed now, if the request names a model without a version."""
    start = spec.get("init_from")
    if start is not None and start.get("version") is None:
        deployed = fetch(plpy, DEPLOYED, start["model_id"])
        if deployed:
            start["version"] = deployed[0]["number"]


def _require_validation(spec: Json) -> None:
    """Raise RequestError if no rows are left to compare trials on."""
    if spec["split"].get("valid_size") == 0:
        raise RequestError(
            "a search compares its trials on validation rows, and the split's valid_size is 0",
            detail="The test rows judge the version that the search ends with, so they cannot choose it.",
            hint="Give the split a valid_size above 0: split => '{\"valid_size\": 0.2}'.",
        )


def _check_variant(variant: Json, spec: Json, space: Json, table: Table) -> None:
    """Raise RequestError for arguments that a training would refuse."""
    for name, value in variant.items():
        if not isinstance(value, dict):
            hint = "Give JSON objects as its choices; an empty one stands for the defaults."
            raise RequestError(f"{name} is {shown(value)} in one of the choices, not a JSON object", hint=hint)
    arguments = adapted({**spec, **variant}, space)
    architecture = check_architecture(arguments["architecture"])
    hyperparams = check_hyperparams(arguments["hyperparams"])
    complete = {**arguments, "architecture": architecture, "hyperparams": hyperparams}
    check_weight_column(table, complete)
    check_loss(hyperparams, spec["task"])
    check_schedule(hyperparams, spec["split"])
    check_alone(hyperparams)
    check_ensemble(architecture, hyperparams, starts=spec.get("init_from") is not None)
    check_targets_of_estimator(architecture, spec["task"], several=bool(spec.get("targets")))
    check_estimator(complete)
    check_tokens(architecture, arguments["preprocess"])
    check_length_buckets(complete)
    check_image_options(table, complete)
    if "preprocess" in variant:
        columns = {column.name: (column.type, column.kind) for column in used_columns(table, spec)}
        check_preprocess_columns(check_preprocess(variant["preprocess"]), columns, str(table), table.column_names)


DEPLOYED = "select v.number from tensile.model_versions as v where v.model_id = $1::int8 and v.deployed"
