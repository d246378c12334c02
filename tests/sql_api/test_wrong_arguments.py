"""Every argument of a training and of a search is refused at enqueue if it is wrong, with what it may be.

The wrong values follow from the tables of what a request may name, so an argument that is added to them is tested.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from indb_tensile import sql_api
from indb_tensile.request.early_stop_rules import EARLY_STOP
from indb_tensile.request.forecast_rules import FORECAST
from indb_tensile.request.hyperparam_rules import HYPERPARAMS
from indb_tensile.request.job_rules import DEPLOY
from indb_tensile.request.network_rules import ARCHITECTURES, LAYERS
from indb_tensile.request.parameter_rules import Rule
from indb_tensile.request.preprocess_rules import PREPROCESS
from indb_tensile.request.pretrained_rules import LORA
from indb_tensile.request.search_rules import PRUNERS, SEARCH_OPTIONS
from indb_tensile.request.split_rules import SPLIT
from indb_tensile.request.task_rules import METRICS, TASKS
from tests.sql_api.fakes import plpy_with

Json = dict[str, Any]


def _network(kind: str, parameters: Json) -> Json:
    return {"architecture": json.dumps({"type": kind, **parameters})}


def _layer(kind: str, parameters: Json) -> Json:
    return {"architecture": json.dumps([{"type": kind, **parameters}])}


def _requests() -> Iterator[tuple[str, str, Mapping[str, Rule], Any]]:
    """Yield the verb, the subject, the rules of its parameters, and what makes a request of some of them."""
    for kind, rules in ARCHITECTURES.items():
        yield "train", f"architecture {kind}", rules, lambda own, kind=kind: _network(kind, own)
    for kind, rules in LAYERS.items():
        yield "train", f"architecture: layer 0 ({kind})", rules, lambda own, kind=kind: _layer(kind, own)
    yield (
        "train",
        "architecture pretrained: lora",
        LORA,
        lambda own: _network("pretrained", {"from": "bert", "train": "lora", "lora": own}),
    )
    yield "train", "hyperparams", HYPERPARAMS, lambda own: {"hyperparams": own}
    yield "train", "early_stop", EARLY_STOP, lambda own: {"early_stop": own}
    yield "train", "split", SPLIT, lambda own: {"split": own}
    yield "train", "forecast", FORECAST, lambda own: {"task": "forecast", "target": "petal", "forecast": own}
    for kind, rules in PRUNERS.items():
        yield "search", f"prune {kind}", rules, lambda own, kind=kind: _pruned(json.dumps({"type": kind, **own}))
    yield "search", "search", SEARCH_OPTIONS, lambda own: {"search": own, "hyperparams": _VARYING}


_VARYING = {"learning_rate": {"range": [0.001, 0.1]}}
REQUESTS = {subject: (verb, rules, request) for verb, subject, rules, request in _requests()}


def _pruned(prune: str) -> Json:
    return {"search": {"prune": prune}, "hyperparams": _VARYING}


def _refusal(verb: str, request: Json) -> Json:
    """Return the error of a request, which must be refused before anything is enqueued."""
    plpy = plpy_with()
    answer = sql_api.handle(plpy, verb, {"model": "m", "relation": 5, **request})
    assert "error" in answer, f"{request} is enqueued"
    assert not [statement for statement, _ in plpy.executed if "insert" in statement], request
    error: Json = answer["error"]
    return error


def _wrong(rule: Rule) -> Iterator[Any]:
    """Yield values that the rule does not allow: of wrong types, out of range, and unknown choices."""
    kind = rule["type"]
    yield {"integer": "1", "number": "1", "boolean": 1, "text": 1, "layers": {}, "object": 1}.get(kind, True)
    if kind == "choice":
        yield from (rule["values"][0] + "x", rule["values"][0].upper(), [rule["values"][0]])
    elif kind in ("integer", "number"):
        yield from (True, [1], *_out_of_range(rule))
        if kind == "integer":
            yield 1.5
    elif kind in ("integers", "numbers", "texts"):
        shortest, longest = rule.get("length", (0, 1000))
        item: Any = "x" if kind == "texts" else _inside(rule)
        yield from ([item] * (longest + 1), [[item]] * max(shortest, 1))
        if shortest:
            yield [item] * (shortest - 1)
        yield from ([beyond] * max(shortest, 1) for beyond in _out_of_range(rule) if kind != "texts")
    elif kind == "weights":
        yield from (rule["values"][0] + "x", {}, {"a": rule["minimum"] - 1}, {"a": "1"}, {"a": rule["maximum"] * 2})
    elif kind == "layers":
        yield [1]


def _out_of_range(rule: Rule) -> Iterator[Any]:
    if "minimum" in rule:
        yield rule["minimum"] - 1
    if "maximum" in rule:
        yield rule["maximum"] + 1
    yield from (rule[bound] for bound in ("above", "below") if bound in rule)


def _inside(rule: Rule) -> Any:
    return rule["minimum"] if "minimum" in rule else rule["below"] / 2


def _limits(rule: Rule) -> list[str]:
    """Return the words that a hint must have: the choices, or the bounds, or the names of an object's parameters."""
    bounds = [str(rule[bound]) for bound in ("minimum", "maximum", "above", "below") if bound in rule]
    return [*rule.get("values", ()), *rule.get("rules", ()), *bounds]


@pytest.mark.parametrize("subject", REQUESTS)
def test_a_wrong_value_is_refused_with_what_it_may_be(subject: str) -> None:
    verb, rules, request = REQUESTS[subject]
    for name, rule in rules.items():
        for value in _wrong(rule):
            error = _refusal(verb, request({name: value}))
            assert error["sqlstate"] == "22023"
            assert error["message"].startswith(f'{subject}: "{name}" is '), error
            assert f'"{name}" must be ' in error["hint"]
            assert [word for word in _limits(rule) if word not in error["hint"]] == [], error


@pytest.mark.parametrize("subject", REQUESTS)
def test_an_unknown_name_is_refused_with_the_known_ones_and_the_nearest(subject: str) -> None:
    verb, rules, request = REQUESTS[subject]
    known = f"Known parameters: {', '.join(rules) or 'none'}."
    for name in rules:
        misspelt = f"{name[:2]}_{name[2:]}"
        error = _refusal(verb, request({misspelt: 1}))
        near = f'Did you mean "{name}"? ' if len(name) > 1 else ""  # nothing is near a single letter
        assert error["message"] == f'{subject}: unknown parameter "{misspelt}"'
        assert error["hint"] == near + known
    error = _refusal(verb, request({"zzz": 1}))
    assert (error["message"], error["hint"]) == (f'{subject}: unknown parameter "zzz"', known)


@pytest.mark.parametrize("subject", ["hyperparams", *(f"architecture {kind}" for kind in ARCHITECTURES)])
def test_a_search_refuses_wrong_choices_and_wrong_ends_of_ranges(subject: str) -> None:
    _, rules, request = REQUESTS[subject]
    for name, rule in rules.items():
        varying: list[Json] = [{"choices": [value]} for value in _wrong(rule)]
        if rule["type"] in ("integer", "number") and "maximum" in rule:
            varying.append({"range": [rule["maximum"] + 1, rule["maximum"] + 2]})
        for dimension in varying:
            error = _refusal("search", request({name: dimension}) | {"search": {}})
            assert error["sqlstate"] == "22023"
            assert error["message"].startswith(f'{subject}: "{name}" is '), (dimension, error)


@pytest.mark.parametrize(
    ("request_", "message", "nearest", "known"),
    [
        ({"architecture": "tabn"}, 'unknown architecture "tabn"', "tabm", ARCHITECTURES),
        (
            {"architecture": '[{"type": "dropuot"}]'},
            'architecture: layer 0 is {"type": "dropuot"}',
            "dropout",
            LAYERS,
        ),
        ({"task": "regresion"}, 'unknown task "regresion"', "regression", TASKS),
        ({"deploy": "if-better"}, 'unknown deploy "if-better"', "if_better", DEPLOY),
        (
            {"metric": "acuracy"},
            'unknown metric "acuracy" for classification',
            "accuracy",
            METRICS["classification"],
        ),
        (
            {"early_stop": {"metric": "f1"}},
            'early_stop: unknown metric "f1"',
            "f1_macro",
            ("loss", *METRICS["classification"]),
        ),
        ({"hyperparams": {"optimizer": "adan"}}, 'hyperparams: "optimizer" is "adan"', "adam", ()),
        ({"hyperparams": {"lr": 1}}, 'hyperparams: unknown parameter "lr"', "learning_rate", HYPERPARAMS),
        ({"target": "Label"}, 'column "Label" of relation "public.iris" does not exist', "label", ("petal",)),
        ({"preprocess": {"scale": {"petall": "log"}}}, 'preprocess: "scale" names column "petall"', "petal", ()),
        ({"preprocess": {"scale": "logs"}}, 'preprocess: "scale" is "logs"', "log", PREPROCESS["scale"]["values"]),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest_and_the_known_ones(
    request_: Json, message: str, nearest: str, known: Iterable[str]
) -> None:
    error = _refusal("train", {"target": "label", **request_})
    assert error["message"].startswith(message)
    assert error["hint"].startswith(f'Did you mean "{nearest}"? ')
    assert [word for word in known if word not in error["hint"]] == []


def test_the_nearest_pruning_and_the_nearest_key_of_a_range_are_named() -> None:
    error = _refusal("search", {"search": {"prune": "ahsa"}, "hyperparams": _VARYING})
    assert error["message"] == 'unknown prune "ahsa"'
    assert error["hint"].startswith('Did you mean "asha"? Give one of asha, halving, none, or ')
    hyperparams = {"learning_rate": {"range": [0.1, 1], "lg": True}}
    error = _refusal("search", {"search": {}, "hyperparams": hyperparams})
    assert error["message"] == 'learning_rate: "lg" is no key beside "range"'
    assert error["hint"] == 'Did you mean "log"? Known keys: log, range, step.'


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            {"hyperparams": {"decay": {"choices": [0.1, 0.2]}}},
            'hyperparams: "decay" means nothing in any trial of the search',
            'Leave it out, or let "schedule" be step or plateau in some trials.',
        ),
        (
            {"hyperparams": {"optimizer": {"choices": ["adam", "adamw"]}, "momentum": 0.9}},
            'hyperparams: "momentum" means nothing in any trial of the search',
            'Leave it out, or let "optimizer" be sgd or rmsprop in some trials.',
        ),
        (
            {"architecture": '{"choices": ["boosting", "linear"]}', "hyperparams": {"epochs": 9}},
            'hyperparams: "epochs" means nothing in any trial of the search',
            'Leave it out, or let "architecture" be a network in some trials.',
        ),
    ],
)
def test_a_search_refuses_what_has_no_effect_in_any_trial(arguments: Json, message: str, hint: str) -> None:
    error = _refusal("search", arguments | {"search": {}})
    assert (error["sqlstate"], error["message"], error["hint"]) == ("22023", message, hint)


@pytest.mark.parametrize(
    ("architecture", "varying"),
    [
        ("boosting", "architecture.learning_rate, architecture.leaves, architecture.l2"),
        ("linear", "architecture.l2"),
        ("mlp", "learning_rate, weight_decay"),
    ],
)
def test_a_search_in_which_nothing_varies_varies_what_its_architecture_has(architecture: str, varying: str) -> None:
    plpy = plpy_with()
    request = {"model": "m", "relation": 5, "architecture": architecture, "search": {}}
    assert sql_api.handle(plpy, "search", request)["ok"]
    assert f"nothing varies in the arguments, so the search varies {varying}" in plpy.notices


def _wrong_preprocess(option: str) -> list[Any]:
    """Return values that this option of preprocessing does not take, for all columns and for one."""
    by_type: dict[str, list[Any]] = {
        "boolean": [1, "true"],
        "choice": ["x", 1, True],
        "encoding": ["x", 1, []],
        "integer": ["1", 0, PREPROCESS[option].get("maximum", 0) + 1, True, 1.5],
        "integers": [1, [1], [0, 1], ["1", "1"], [1, 2000]],
        "rule": ["x", True, [], 10**400],
        "paths": [1, "x"],
    }
    return by_type[PREPROCESS[option]["type"]]


@pytest.mark.parametrize("option", PREPROCESS)
def test_a_wrong_option_of_preprocessing_is_refused_with_what_it_may_be(option: str) -> None:
    words = (*PREPROCESS[option].get("values", ()), f'{{"{option}": ')
    for value in _wrong_preprocess(option):
        for own, where in ((value, ""), ({"petal": value}, ' of column "petal"')):
            error = _refusal("train", {"preprocess": {option: own}})
            assert error["sqlstate"] == "22023"
            assert error["message"].startswith(f'preprocess: "{option}"{where} is '), error
            assert [word for word in words if word not in error["hint"]] == [], error
    error = _refusal("train", {"preprocess": {f"{option}s": 1}})
    assert error["message"] == f'preprocess: unknown parameter "{option}s"'
    assert error["hint"] == f'Did you mean "{option}"? Known parameters: {", ".join(PREPROCESS)}.'


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"hyperparams": {"hidden": [64]}}, 'hyperparams: unknown parameter "hidden"', "architecture"),
        ({"hyperparams": {"patience": 5}}, 'hyperparams: unknown parameter "patience"', "early_stop or architecture"),
        ({"hyperparams": {"test_size": 0.3}}, 'hyperparams: unknown parameter "test_size"', "split"),
        (
            {"architecture": '{"type": "mlp", "learning_rate": 0.1}'},
            'architecture mlp: unknown parameter "learning_rate"',
            "hyperparams",
        ),
        ({"early_stop": {"epochs": 5}}, 'early_stop: unknown parameter "epochs"', "hyperparams"),
        ({"split": {"missing": "mean"}}, 'split: unknown parameter "missing"', "preprocess"),
        (
            {"task": "forecast", "target": "petal", "forecast": {"valid_size": 0.2}},
            'forecast: unknown parameter "valid_size"',
            "split",
        ),
        ({"preprocess": {"seed": 3}}, 'preprocess: unknown parameter "seed"', "hyperparams or split"),
    ],
)
def test_a_parameter_in_the_wrong_argument_is_refused_with_the_right_one(
    arguments: Json, message: str, hint: str
) -> None:
    error = _refusal("train", arguments)
    assert (error["sqlstate"], error["message"]) == ("22023", message)
    assert error["hint"] == f"Give it in the argument {hint}."
    assert error["detail"].startswith("Known parameters: ")
