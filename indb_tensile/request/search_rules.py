"""The search over trainings: the arguments that vary, their values, and the options of the search.

An argument varies where its JSON has an object with the key `choices` or `range` in place of a value:
`{"choices": [64, 256]}`, `{"range": [1e-5, 1e-1], "log": true}`, `{"range": [1, 8]}`, `{"range": [0.0, 0.5],
"step": 0.1}`. Such an object is a dimension. It may stand at any place within the arguments `architecture`,
`hyperparams` and `preprocess`, and also within a choice: a dimension within a choice exists only in the trials that
have that choice.

A dimension has a name, which is the path to it without the word `hyperparams`: `learning_rate`,
`architecture.hidden`, and `architecture[1].dropout` within the second choice of the architecture.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import RequestError
from .abbreviation import shown
from .hyperparam_rules import HYPERPARAMS, HYPERPARAMS_OF_ESTIMATORS, ONLY_WITH
from .near_names import did_you_mean
from .network_rules import ARCHITECTURES, ESTIMATORS
from .parameter_rules import Json, Rule, check_parameters

SEARCHED = ("architecture", "hyperparams", "preprocess")  # the arguments that may have dimensions
SAMPLERS = ("tpe", "random", "grid")
MOST_TRIALS = 1000
MOST_PARALLEL = 64
# Bounds of the time that the steward takes for a draw, and a session to check all values.
MOST_DIMENSIONS = 100
MOST_CHOICES = 1000  # most choices of all dimensions together
MOST_SPACE_BYTES = 32768
_MOST_STEPS = 1_000_000  # most steps within a range
SEARCH_OPTIONS: dict[str, Rule] = {
    "trials": {"type": "integer", "minimum": 1, "maximum": MOST_TRIALS, "default": None},
    "parallel": {"type": "integer", "minimum": 1, "maximum": MOST_PARALLEL, "default": 4},
    "sampler": {"type": "choice", "values": list(SAMPLERS), "default": "tpe"},
    "search_seed": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": 0},
    "max_duration_s": {"type": "number", "minimum": 1, "maximum": 2147483647, "default": None},
}
DEFAULT_TRIALS = 16  # trials of a search that is no grid; a grid has as many trials as points
_PRUNING: dict[str, Rule] = {
    "factor": {"type": "integer", "minimum": 2, "maximum": 16, "default": 3},
    "rungs": {"type": "integer", "minimum": 2, "maximum": 8, "default": 3},
}
PRUNERS: dict[str, dict[str, Rule]] = {"asha": _PRUNING, "halving": _PRUNING, "none": {}}
# The space of a search whose arguments have no dimension.
DEFAULT_HYPERPARAMS: Json = {
    "learning_rate": {"range": [3e-4, 1e-2], "log": True},
    "weight_decay": {"range": [1e-6, 1e-1], "log": True},
}
DEFAULT_ARCHITECTURE: Json = {
    "choices": [
        {"type": "auto"},
        {"type": "tabm"},
        {
            "type": "mlp",
            "hidden": {"choices": [[128], [256, 128], [256, 256, 256]]},
            "dropout": {"range": [0.0, 0.4]},
        },
    ]
}
# The parameters that vary if a model of scikit-learn is searched for, which takes none of those hyper-parameters.
DEFAULT_PARAMETERS: dict[str, Json] = {
    "boosting": {
        "learning_rate": {"range": [0.02, 0.3], "log": True},
        "leaves": {"range": [7, 127]},
        "l2": {"choices": [0.0, 1.0, 10.0]},
    },
    "linear": {"l2": {"range": [1e-3, 1e2], "log": True}},
}

_ARCHITECTURE = "architecture"
_DIMENSION_KEYS = {"choices": {"choices"}, "range": {"range", "log", "step"}}
_RANGE_HINT = 'Give two numbers, the smaller one first: {"range": [0.0001, 0.1], "log": true}.'


class Dimension(NamedTuple):
    """One argument that varies: either `choices`, or the numbers from `low` to `high`, both included.

    `log`: the numbers are drawn evenly on a logarithmic scale. `integer`: only whole numbers. `step`: only numbers
    at a multiple of this distance from `low`.
    """

    name: str
    choices: tuple[Any, ...] | None = None
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    integer: bool = False

    @property
    def picks(self) -> list[Any]:
        """Return all picks of a grid: the places of the choices, or the numbers of a range with steps.

        Raises RequestError for a range without steps.
        """
        if self.choices is not None:
            return list(range(len(self.choices)))
        step = self.step or (1 if self.integer else None)
        if step is None or self.log:
            detail = "A grid has a trial for each combination of values, so it needs a list of them."
            hint = 'Give "choices", or a range with a "step" and without "log"; or another sampler: tpe, random.'
            raise RequestError(f"the values of {self.name} are not countable", detail=detail, hint=hint)
        count = int((self.high - self.low) / step + 1e-9) + 1
        if count > MOST_TRIALS:
            raise RequestError(
                f"{self.name} has {count} values, more than {MOST_TRIALS}", hint='Give a larger "step".'
            )
        return [self.value(self.low + place * step) for place in range(count)]

    def value(self, number: float) -> Any:
        """Return a number of the range as the argument has it."""
        return round(number) if self.integer else float(number)


def adapted(arguments: Json, space: Json) -> Json:
    """Return the arguments of a trial. If the architecture varies, those of networks are left out of other trials."""
    architecture = arguments["architecture"]
    if architecture.get("type") not in ESTIMATORS or not _varies(space.get("architecture")):
        return arguments
    hyperparams = {name: own for name, own in arguments["hyperparams"].items() if name in HYPERPARAMS_OF_ESTIMATORS}
    return arguments | {"hyperparams": hyperparams, "early_stop": None, "memory_limit_bytes": None}


Pick = Callable[[Dimension], Any]  # returns the place of a choice, or a number of the range


def resolve(space: Json, pick: Pick) -> Json:
    """Return the arguments in which each dimension is replaced by its picked value.

    A hyper-parameter is left out if it has no effect with the picked values, and if the parameter, or one that it
    depends on, varies. Examples are hyper-parameters of networks beside a model of scikit-learn, and the momentum
    beside an optimizer without momentum.
    """
    resolved = {name: _replaced(value, name, pick) for name, value in space.items() if value is not None}
    stated = space.get("hyperparams") or {}
    hyperparams = resolved.get("hyperparams")
    if hyperparams and not _varies(stated):
        varying = {name for name, value in stated.items() if _varies(value, name)}
        if _varies(space.get("architecture")):
            varying.add(_ARCHITECTURE)
        kind = (resolved.get("architecture") or {}).get("type")
        resolved["hyperparams"] = {
            name: value for name, value in hyperparams.items() if not _is_idle(name, hyperparams, kind, varying)
        }
    return resolved


def dimensions(space: Json) -> list[Dimension]:
    """Return all dimensions, those within choices included. Raises RequestError for one that is not well formed."""
    return [dimension for name, value in space.items() for dimension in _dimensions(value, name)]


def first_picks(dimension: Dimension) -> Any:
    """Pick the first choice, or the smallest number; of architectures the first network, if there is one."""
    if dimension.name == _ARCHITECTURE and dimension.choices is not None:
        kinds = [choice.get("type") if isinstance(choice, dict) else None for choice in dimension.choices]
        return next((place for place, kind in enumerate(kinds) if kind not in ESTIMATORS), 0)
    return 0 if dimension.choices is not None else dimension.value(dimension.low)


def pick_from(picks: Mapping[str, Any]) -> Pick:
    """Return the function that picks these values, and the first ones for the dimensions that are not among them."""
    return lambda dimension: picks.get(dimension.name, first_picks(dimension))


def variants(space: Json) -> Iterator[Json]:
    """Yield arguments in which every choice, and both ends of every range, occur at least once."""
    for path, dimension in _with_path(space):
        ends = range(len(dimension.choices)) if dimension.choices is not None else (dimension.low, dimension.high)
        for end in ends:
            picks: dict[str, Any] = path | {
                dimension.name: end if dimension.choices is not None else dimension.value(end)
            }
            yield resolve(space, pick_from(picks))


def grid(space: Json) -> Iterator[dict[str, Any]]:
    """Yield the picks of every combination of values, by the names of the dimensions that exist in it.

    Combinations that differ only in arguments without effect are one: the first of them is yielded.
    """
    seen = set()
    for picks in _grid_of(list(space.items())):
        arguments = json.dumps(resolve(space, pick_from(picks)), sort_keys=True)
        if arguments not in seen:
            seen.add(arguments)
            yield picks


def check_space(space: Json) -> Json:
    """Return the space. Raises RequestError for a dimension that is not well formed, and for too large a space."""
    size_bytes = len(json.dumps(space))
    if size_bytes > MOST_SPACE_BYTES:
        message = f"the arguments that a search varies have {size_bytes} bytes, more than {MOST_SPACE_BYTES}"
        raise RequestError(message, hint="Give fewer choices.")
    varying = dimensions(space)
    if len(varying) > MOST_DIMENSIONS:
        message = f"the search has {len(varying)} arguments that vary, more than {MOST_DIMENSIONS}"
        raise RequestError(message, hint="Fix the value of some of them.")
    choices = sum(len(dimension.choices or ()) for dimension in varying)
    if choices > MOST_CHOICES:
        message = f"the search has {choices} choices, more than {MOST_CHOICES}"
        raise RequestError(message, hint="Give fewer choices, or ranges of numbers.")
    return space


def check_idle(space: Json) -> None:
    """Raise RequestError for a hyper-parameter that is wrong, or has no effect, in all trials.

    `resolve` leaves out those without effect in a trial, so that the checks of the trials do not see them.
    """
    stated = space.get("hyperparams")
    if not isinstance(stated, dict) or _varies(stated):
        return
    resolved = list(variants(space))
    used = {name for variant in resolved for name in variant["hyperparams"]}
    for name, value in stated.items():
        if value is None or name in used:
            continue
        path = f"hyperparams.{name}"
        dimension = _read(value, path) if _varies(value, path) else None
        ends = (value,) if dimension is None else dimension.choices or (dimension.low, dimension.high)
        for end in ends:
            check_parameters("hyperparams", {name: _replaced(end, path, first_picks)}, HYPERPARAMS)
        switch, allowed = ONLY_WITH.get(name, ("architecture", ("a network",)))
        raise RequestError(
            f'hyperparams: "{name}" means nothing in any trial of the search',
            hint=f'Leave it out, or let "{switch}" be {" or ".join(allowed)} in some trials.',
        )


def check_search(options: Json, space: Json) -> Json:
    """Return the options of a search with their defaults. Raises RequestError for a wrong one.

    `options` has the keys of SEARCH_OPTIONS, and `prune`, a name or a JSON object. The space has been checked.
    """
    own = {name: value for name, value in options.items() if name != "prune"}
    checked = {name: rule["default"] for name, rule in SEARCH_OPTIONS.items()}
    checked |= check_parameters("search", own, SEARCH_OPTIONS)
    checked["prune"] = check_pruning(options.get("prune"))
    if checked["sampler"] == "grid":
        points = sum(1 for _, _ in zip(grid(space), range(MOST_TRIALS + 1), strict=False))
        if checked["trials"] is None and points > MOST_TRIALS:
            hint = f"Vary fewer values, or give trials => {MOST_TRIALS} to try only the first ones."
            raise RequestError(f"the grid has more than {MOST_TRIALS} points", hint=hint)
        checked["trials"] = min(points, checked["trials"] or points)
    elif checked["trials"] is None:
        checked["trials"] = DEFAULT_TRIALS
    return checked


def check_pruning(value: Any) -> Json:
    """Return the rule that stops trials early, as `{"type": ...}` with its parameters. The default is ASHA."""
    declaration = {"type": "asha"} if value is None else {"type": value} if isinstance(value, str) else value
    known = ", ".join(PRUNERS)
    hint = f'Give one of {known}, or a JSON object such as {{"type": "asha", "factor": 3, "rungs": 3}}.'
    kind = declaration.get("type") if isinstance(declaration, dict) else None
    if not isinstance(kind, str) or kind not in PRUNERS:
        raise RequestError(f"unknown prune {shown(value)}", hint=did_you_mean(kind, PRUNERS) + hint)
    own = {name: parameter for name, parameter in declaration.items() if name != "type"}
    values = check_parameters(f"prune {kind}", own, PRUNERS[kind])
    return {"type": kind} | {name: rule["default"] for name, rule in PRUNERS[kind].items()} | values


def rung_shares(prune: Json) -> tuple[float, ...]:
    """Return the shares of a whole training at which trials are compared. The last one is 1: the whole training.

    Each rung is `factor` times as long as the one before (Li et al., A System for Massively Parallel Hyperparameter
    Tuning, 2020).
    """
    if prune["type"] == "none":
        return (1.0,)
    return tuple(float(prune["factor"]) ** -place for place in range(prune["rungs"] - 1, -1, -1))


def _varies(value: Any, name: str = "") -> bool:
    """Return whether a JSON object is a dimension.

    Where names of columns or classes are keys, only an object of the right form is one.
    """
    if not isinstance(value, dict) or not value.keys() & _DIMENSION_KEYS.keys():
        return False
    return not (name.startswith("preprocess") or "class_weight" in name) or any(
        isinstance(value.get(key), list) and value.keys() <= keys for key, keys in _DIMENSION_KEYS.items()
    )


def _read(value: Json, name: str) -> Dimension:
    """Return the dimension of a JSON object. Raises RequestError for one that is not well formed."""
    kind = "choices" if "choices" in value else "range"
    excess = sorted(value.keys() - _DIMENSION_KEYS[kind])
    if excess:
        known = ", ".join(sorted(_DIMENSION_KEYS[kind]))
        hint = f"{did_you_mean(excess[0], _DIMENSION_KEYS[kind])}Known keys: {known}."
        raise RequestError(f'{_title(name)}: {shown(excess[0])} is no key beside "{kind}"', hint=hint)
    if not isinstance(value[kind], list):
        hint = _RANGE_HINT if kind == "range" else 'Give a list: {"choices": [64, 128]}.'
        raise RequestError(f'{_title(name)}: "{kind}" is {shown(value[kind])}, not a list', hint=hint)
    if kind == "choices":
        if not value["choices"]:
            raise RequestError(f"{_title(name)}: the list of choices is empty", hint="Give one value or more.")
        return Dimension(name=_title(name), choices=tuple(value["choices"]))
    ends, step, log = value["range"], value.get("step"), value.get("log", False)
    if len(ends) != 2 or not all(_is_number(end) for end in ends) or ends[0] >= ends[1]:
        raise RequestError(f"{_title(name)}: the range is {shown(ends)}", hint=_RANGE_HINT)
    if not isinstance(log, bool):
        raise RequestError(f'{_title(name)}: "log" is {shown(log)}', hint="Give true or false.")
    if log and ends[0] <= 0:
        hint = "Give a range above 0, or leave out log."
        raise RequestError(f"{_title(name)}: a logarithmic range begins at {ends[0]}", hint=hint)
    if step is not None and (not _is_number(step) or step <= 0 or log):
        reason = "means nothing on a logarithmic scale" if log else f"is {shown(step)}"
        raise RequestError(f'{_title(name)}: "step" {reason}', hint='Give a number above 0, without "log".')
    if step is not None and not (ends[1] - ends[0]) / _MOST_STEPS <= step <= ends[1] - ends[0]:
        hint = f"Give a step that is at most the length of the range, and at least a {_MOST_STEPS:,}th of it."
        raise RequestError(f'{_title(name)}: "step" is {shown(step)}, and the range is {shown(ends)}', hint=hint)
    whole = all(isinstance(number, int) for number in (*ends, step or 1)) and not _takes_fractions(name)
    return Dimension(name=_title(name), low=ends[0], high=ends[1], log=log, step=step, integer=whole)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300


def _takes_fractions(name: str) -> bool:
    """Return whether the parameter of this path takes numbers that are not whole, by the rules of its name."""
    last = name.rsplit(".", 1)[-1]
    tables = (HYPERPARAMS,) if name.startswith("hyperparams") else tuple(ARCHITECTURES.values())
    return any(table.get(last, {}).get("type") in ("number", "numbers") for table in tables)


def _title(name: str) -> str:
    return name.removeprefix("hyperparams.")


def _children(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the values within a JSON object or list, with their paths."""
    if isinstance(value, dict):
        yield from ((f"{name}.{key}", own) for key, own in value.items())
    elif isinstance(value, list):
        yield from ((f"{name}[{place}]", own) for place, own in enumerate(value))


def _replaced(value: Any, name: str, pick: Pick) -> Any:
    if _varies(value, name):
        dimension = _read(value, name)
        picked = pick(dimension)
        if dimension.choices is None:
            return picked
        return _replaced(dimension.choices[picked], f"{name}[{picked}]", pick)
    if isinstance(value, dict):
        return {key: _replaced(own, f"{name}.{key}", pick) for key, own in value.items()}
    if isinstance(value, list):
        return [_replaced(own, f"{name}[{place}]", pick) for place, own in enumerate(value)]
    return value


def _dimensions(value: Any, name: str) -> Iterator[Dimension]:
    if _varies(value, name):
        dimension = _read(value, name)
        yield dimension
        for place, choice in enumerate(dimension.choices or ()):
            yield from _dimensions(choice, f"{name}[{place}]")
        return
    for path, own in _children(value, name):
        yield from _dimensions(own, path)


def _with_path(space: Json) -> Iterator[tuple[dict[str, Any], Dimension]]:
    """Yield every dimension with the choices of other dimensions under which it exists."""

    def walk(value: Any, name: str, above: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Dimension]]:
        if _varies(value, name):
            dimension = _read(value, name)
            yield above, dimension
            for place, choice in enumerate(dimension.choices or ()):
                yield from walk(choice, f"{name}[{place}]", above | {dimension.name: place})
            return
        for path, own in _children(value, name):
            yield from walk(own, path, above)

    for name, value in space.items():
        yield from walk(value, name, {})


def _grid_of(items: list[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the combinations of the dimensions within these values, the last ones varying fastest."""
    waiting = list(reversed(items))
    while waiting and not _varies(waiting[-1][1], waiting[-1][0]):
        name, value = waiting.pop()
        waiting.extend(reversed(list(_children(value, name))))
    if not waiting:
        yield {}
        return
    name, value = waiting.pop()
    others, dimension = list(reversed(waiting)), _read(value, name)
    for pick in dimension.picks:
        within = [] if dimension.choices is None else [(f"{name}[{pick}]", dimension.choices[pick])]
        for combination in _grid_of([*within, *others]):
            yield {dimension.name: pick} | combination


def _is_idle(name: str, hyperparams: Json, kind: Any, varying: set[str]) -> bool:
    """Return whether a hyper-parameter has no effect, and it or what it depends on is among the `varying` ones."""
    if kind in ESTIMATORS and varying & {name, _ARCHITECTURE}:
        return name not in HYPERPARAMS_OF_ESTIMATORS
    if name not in ONLY_WITH:
        return False
    switch, allowed = ONLY_WITH[name]
    has_effect = hyperparams.get(switch, HYPERPARAMS[switch]["default"]) in (None, *allowed)
    return bool(varying & {name, switch}) and not has_effect
