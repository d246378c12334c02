"""A class's name is used once, so that it can be found by its name alone."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import indb_tensile

_ROOT = Path(indb_tensile.__file__).parents[1]
# one concept in two layers that cannot import each other: the bridge's modules have the standard library only
_MIRRORED = {"Column"}


def test_no_two_modules_define_a_public_class_of_the_same_name() -> None:
    modules = defaultdict(list)
    for name, module in _classes():
        modules[name].append(module)
    assert len(modules) > 300
    repeated = {name: found for name, found in modules.items() if len(found) > 1}
    assert {name: found for name, found in repeated.items() if name not in _MIRRORED} == {}
    assert set(repeated) == _MIRRORED, "a name that is no longer repeated leaves the list"


def _classes() -> Iterator[tuple[str, str]]:
    for folder in ("indb_tensile", "worker"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield node.name, str(path.relative_to(_ROOT))
