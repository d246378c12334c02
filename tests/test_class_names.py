"""Names of modules and public classes are each used once, and variables have names that say what they are."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import indb_tensile

_ROOT = Path(indb_tensile.__file__).parents[1]
_CLASS = re.compile(
    r"^class ([A-Za-z]\w*)", re.MULTILINE
)  # a public class of a module; parsing it takes a second more

_WORDS = "(?:found|given|one|told)"
# an assignment, a loop, a context, a parameter and a lambda; parsing all files takes seconds
_VAGUE = re.compile(
    rf"^ *{_WORDS}(?:, \w+)*(?:: [\w\[\], ]+)? \+?= |\bfor (?:\w+, )*{_WORDS}(?:, \w+)* in\b"
    rf"|\bas {_WORDS}:$|^ *def \w+\(.*\b{_WORDS}[:=]|\blambda {_WORDS}:",
    re.MULTILINE,
)


def test_no_variable_has_a_name_that_says_nothing() -> None:
    files = [*_modules(), *sorted((_ROOT / "tests").rglob("*.py"))]
    vague = {str(path.relative_to(_ROOT)): _VAGUE.findall(path.read_text()) for path in files}
    assert {path: matches for path, matches in vague.items() if matches} == {}


def test_no_two_modules_define_a_public_class_of_the_same_name() -> None:
    modules = defaultdict(list)
    for name, module in _classes():
        modules[name].append(module)
    assert len(modules) > 300
    repeated = {name: places for name, places in modules.items() if len(places) > 1}
    assert repeated == {}


def test_no_two_modules_have_the_same_name() -> None:
    folders = defaultdict(list)
    for path in _modules():
        if path.name != "__init__.py":
            folders[path.stem].append(str(path.parent.relative_to(_ROOT)))
    assert len(folders) > 600
    assert {name: places for name, places in folders.items() if len(places) > 1} == {}


def _classes() -> Iterator[tuple[str, str]]:
    for path in _modules():
        for name in _CLASS.findall(path.read_text()):
            yield name, str(path.relative_to(_ROOT))


def _modules() -> Iterator[Path]:
    for folder in ("indb_tensile", "worker"):
        yield from sorted((_ROOT / folder).rglob("*.py"))
