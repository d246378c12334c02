"""A class's name is used once, so that it can be found by its name alone."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import indb_tensile

_ROOT = Path(indb_tensile.__file__).parents[1]


def test_no_two_modules_define_a_public_class_of_the_same_name() -> None:
    modules = defaultdict(list)
    for name, module in _classes():
        modules[name].append(module)
    assert len(modules) > 300
    repeated = {name: places for name, places in modules.items() if len(places) > 1}
    assert repeated == {}


def _classes() -> Iterator[tuple[str, str]]:
    for folder in ("indb_tensile", "worker"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield node.name, str(path.relative_to(_ROOT))
