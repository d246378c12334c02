"""Texts that reach a database are in ASCII, because not every database has an encoding with other characters."""

import ast
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCREENS = (
    "indb_tensile/bench",
    "indb_tensile/cli",
    "indb_tensile/monitor",
    "indb_tensile/web",
)  # shown by our programs
SCRIPTS = sorted((ROOT / "sql").rglob("*.sql"))
MODULES = sorted(
    path
    for package in ("indb_tensile", "worker")
    for path in (ROOT / package).rglob("*.py")
    if not path.relative_to(ROOT).as_posix().startswith(SCREENS)
)


def texts(module: Path) -> Iterator[str]:
    """Return the text constants of a module that are no docstrings."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.value


def test_the_sql_scripts_are_in_ascii() -> None:
    assert SCRIPTS
    assert [path.name for path in SCRIPTS if not path.read_text(encoding="utf-8").isascii()] == []


@pytest.mark.parametrize("package", ["indb_tensile", "worker"])
def test_messages_and_statements_are_in_ascii(package: str) -> None:
    modules = [path for path in MODULES if path.relative_to(ROOT).parts[0] == package]
    assert modules
    assert [(path.name, text) for path in modules for text in texts(path) if not _is_ascii(text)] == []


def _is_ascii(text: str) -> bool:
    """Return whether a text is in ASCII, but for characters that no message has: those that patterns look for."""
    return all(
        letter.isascii() or letter == "\ufffd" or unicodedata.category(letter) in ("Cc", "Cn", "Cs")
        for letter in text
    )
