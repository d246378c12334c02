"""`docs/reference.md` as text, made from the tables that check what a user gives and from `meanings.py`.

Rules are read as data: a key that no other table has yet is printed with its value, so the page leaves out nothing.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from indb_tensile import config
from indb_tensile.catalog import install
from indb_tensile.config import GIB, MIB, SettingRule
from indb_tensile.errors import InvariantError
from indb_tensile.reference import meanings
from indb_tensile.sql_api import options

Rules = Mapping[str, Mapping[str, Any]]

COMMAND = "python -m indb_tensile.reference --write docs/reference.md"
_SETTINGS_FUNCTION = re.compile(r"create function tensile\.known_settings\(\).*?\n\s*values\n(.*?)\n\$\$;", re.DOTALL)
_SETTING = re.compile(r"\('((?:[^']|'')*)', '((?:[^']|'')*)', (null|'(?:[^']|'')*')(?:::jsonb)?, '((?:[^']|'')*)'\)")


def page() -> str:
    """The whole page. Raises InvariantError where a table and the meanings do not have the same names."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "# Options and settings"
    yield ""
    yield f"Made by `{COMMAND}` from the tables that check these options: edit those, not this page."
    yield from _training()
    yield from _architectures()
    yield from _rows_and_judgement()
    yield from _controller()
    yield from _catalog()


def _training() -> Iterator[str]:
    yield from _section(
        "Hyper-parameters",
        "`hyperparams => '{\"epochs\": 20}'` in `tensile_train`, `tensile_explain` and `tensile_create_model`. Null "
        "is the same as leaving a name out.",
    )
    yield from _parameters("hyperparams", options.HYPERPARAMS, meanings.HYPERPARAMS)


def _architectures() -> Iterator[str]:
    yield from _section(
        "Architectures",
        "`architecture => 'mlp'`, or an object with a `type` and parameters: "
        '`\'{"type": "mlp", "hidden": [512, 512]}\'`. A network has at most '
        f"{options.MOST_PARAMETERS:,} parameters.",
    )
    yield from _types("architectures", options.ARCHITECTURES, meanings.ARCHITECTURES, meanings.ARCHITECTURE)

    yield from _section(
        "Layers",
        'The elements of `{"type": "layers", "layers": [{"type": "linear", "out": 64}, {"type": "relu"}, '
        '{"type": "linear"}]}`. '
        f"All levels together have at most {options.MOST_LAYERS} layers.",
    )
    yield from _types("layers", options.LAYERS, meanings.LAYERS, meanings.LAYER)


def _rows_and_judgement() -> Iterator[str]:
    yield from _section(
        "Preprocessing",
        '`preprocess => \'{"missing": {"age": "median"}}\'`. A value holds for every column, an object by '
        "columns' names for these alone.",
    )
    yield from _parameters("preprocess", options.PREPROCESS, meanings.PREPROCESS)
    yield from _section("Split", "`split => '{\"test_size\": 0.2}'`.")
    yield from _parameters("split", options.SPLIT, meanings.SPLIT)
    yield from _section("Early stopping", "`early_stop => '{\"patience\": 5}'`.")
    yield from _parameters("early_stop", options.EARLY_STOP, meanings.EARLY_STOP)
    yield from _section("Metrics", "`metric => 'roc_auc'`: what decides whether a version is better.")
    _check("metrics", {name for names in options.METRICS.values() for name in names}, meanings.METRICS)
    rows = [(f"`{name}`", task, meanings.METRICS[name]) for task, names in options.METRICS.items() for name in names]
    yield from _table(("metric", "task", "meaning"), rows)
    yield from _section("Deployment", "`deploy => 'if_better'`.")
    _check("deploy", options.DEPLOY, meanings.DEPLOY)
    yield from _table(("value", "meaning"), [(f"`{name}`", meanings.DEPLOY[name]) for name in options.DEPLOY])


def _controller() -> Iterator[str]:
    yield from _section(
        "Settings of a controller",
        "The environment variable `TENSILE_` + the name in capitals (`lease_s` is `TENSILE_LEASE_S`), else the TOML "
        "file that `TENSILE_CONFIG` names, else the default. `tensile up` keeps its own file, `settings.toml` in the "
        "state directory, which its options write. Sizes are numbers of bytes, or numbers with kB, MB, GB or TB, "
        "each 1024 times the one before.",
    )
    rules = config.setting_rules()
    _check("settings", [rule.name for rule in rules], meanings.SETTINGS)
    rows = [(f"`{r.name}`", _setting_takes(r), _setting_default(r), meanings.SETTINGS[r.name]) for r in rules]
    yield from _table(("setting", "takes", "default", "meaning"), rows)


def _catalog() -> Iterator[str]:
    yield from _section(
        "Settings of a database",
        "A member of `tensile_admin` sets one: `select tensile_set_setting('retain_jobs', '\"1 year\"')`. "
        "`tensile.setting_list` shows all of them with their values.",
    )
    rows = [
        (f"`{name}`", kind, "none" if default is None else f"`{json.dumps(default)}`", f"{meaning.capitalize()}.")
        for name, kind, default, meaning in catalog_settings()
    ]
    yield from _table(("setting", "takes", "default", "meaning"), rows)


def catalog_settings() -> list[tuple[str, str, Any, str]]:
    """Name, kind, default and meaning of each, as the source of `tensile.known_settings()` has them."""
    found = _SETTINGS_FUNCTION.search(install.script(extension=False))
    if found is None:
        raise InvariantError("the source of tensile.known_settings() is not as the reference page expects")
    rows = []
    for name, kind, default, meaning in _SETTING.findall(found[1]):
        value = None if default == "null" else json.loads(_unquoted(default[1:-1]))
        rows.append((name, kind, value, _unquoted(meaning)))
    return rows


def takes(rule: Mapping[str, Any]) -> str:
    """What a parameter may be, in words; a key of a rule that is not known here is named with its value."""
    kind, rest = str(rule.get("type", "")), dict(rule)
    rest.pop("type", None)
    rest.pop("default", None)
    values, kinds = rest.pop("values", None), rest.pop("kinds", None)
    text = _NOUNS.get(kind, kind)
    if kind == "choice":
        text = ""
    text += "".join(f" {word} {_number(rest.pop(key))}" for key, word in _BOUNDS if key in rest)
    if "length" in rest:
        few, many = rest.pop("length")
        text += f", {few} of them" if few == many else f", {few} to {many} of them"
    if values is not None:
        text += (" or " if text else "") + ", ".join(f"`{value}`" for value in values)
    if kinds is not None:
        text += f"; for columns of kind {', '.join(kinds)}"
    return text + "".join(f"; {key}: {_shown(value)}" for key, value in rest.items())


_NOUNS = {
    "integer": "integer",
    "number": "number",
    "boolean": "`true` or `false`",
    "text": "text",
    "integers": "list of integers",
    "numbers": "list of numbers",
    "layers": "list of layers",
    "rule": "number",
}
_BOUNDS = (("minimum", "from"), ("above", "above"), ("maximum", "to"), ("below", "below"))


def _parameters(subject: str, rules: Rules, words: Mapping[str, str]) -> Iterator[str]:
    """A table of parameters."""
    _check(subject, rules, words)
    rows = [(f"`{name}`", takes(rule), _default(rule), words[name]) for name, rule in rules.items()]
    yield from _table(("name", "takes", "default", "meaning"), rows)


def _types(
    subject: str, types: Mapping[str, Rules], words: Mapping[str, str], parameters: Mapping[str, str]
) -> Iterator[str]:
    """A table of types, each with its parameters below it. `linear.out` in `parameters` goes before `out`."""
    _check(subject, types, words)
    _check_parameters(f"parameters of {subject}", types, parameters)
    rows = []
    for name, rules in types.items():
        rows.append((f"**`{name}`**", "", "", words[name]))
        for key, rule in rules.items():
            meaning = parameters.get(f"{name}.{key}") or parameters[key]
            rows.append((f"`{key}`", takes(rule), _default(rule), meaning))
    yield from _table(("type, parameters", "takes", "default", "meaning"), rows)


def _section(title: str, text: str) -> Iterator[str]:
    yield from ("", f"## {title}", "", text, "")


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _check(subject: str, names: Iterable[str], words: Mapping[str, str]) -> None:
    missing, surplus = sorted(set(names) - set(words)), sorted(set(words) - set(names))
    if missing:
        raise InvariantError(
            f"{subject}: {', '.join(missing)} have no meaning: write a sentence for each in "
            f"indb_tensile/reference/meanings.py, then run {COMMAND}"
        )
    if surplus:
        raise InvariantError(
            f"{subject}: {', '.join(surplus)} are in no table: remove them from indb_tensile/reference/meanings.py"
        )


def _check_parameters(subject: str, types: Mapping[str, Rules], words: Mapping[str, str]) -> None:
    pairs = {f"{name}.{key}": key for name, rules in types.items() for key in rules}
    own = {pair for pair in words if pair in pairs}
    _check(subject, {*pairs.values(), *own}, words)


def _default(rule: Mapping[str, Any]) -> str:
    return _shown(rule["default"]) if "default" in rule else "must be given"


def _shown(value: object) -> str:
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _setting_takes(rule: SettingRule) -> str:
    if rule.choices:
        return ", ".join(f"`{choice}`" for choice in rule.choices)
    text = rule.kind.removeprefix("a ").removeprefix("the ")
    if rule.range is None:
        return text
    low, high = rule.range
    as_text = _size if rule.kind == "a size" else _number
    return f"{text} from {as_text(low)} to {as_text(high)}"


def _setting_default(rule: SettingRule) -> str:
    if rule.default == "":
        return "empty"
    if rule.kind == "a size" and isinstance(rule.default, int):
        return f"`{_size(rule.default)}`"
    return _shown(rule.default)


def _size(size_bytes: float) -> str:
    """In the largest unit that divides it."""
    whole = int(size_bytes)
    for unit, unit_bytes in (("TB", 1024 * GIB), ("GB", GIB), ("MB", MIB), ("kB", 1024)):
        if 0 < whole < 10_000 * unit_bytes and whole % unit_bytes == 0:
            return f"{whole // unit_bytes}{unit}"
    return f"{whole:,}"


def _unquoted(text: str) -> str:
    return text.replace("''", "'")
