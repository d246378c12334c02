"""The source text that the bridge function carries, so that a database host needs no part of the package.

The function `tensile.bridge` (`sql/40_bridge.sql`) makes a package of these modules in each session. It has the
folders of `indb_tensile`, so the modules' relative imports mean the same there as here.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_CARRIED = ("errors.py", "request/*.py", "sql_api/*.py")


def bridge_sources() -> str:
    """Return the texts of the modules as a Python dictionary, by the part of each name after the package's name.

    The key of the package itself is "". Its text is empty.
    """
    return "{" + ",\n".join(f"{literal(name)}: {literal(text)}" for name, text in _texts().items()) + "}"


def bridge_digest() -> str:
    """Return a digest of the modules' names and texts, in 16 hexadecimal digits."""
    return hashlib.sha256(repr(_texts()).encode()).hexdigest()[:16]


def carried_paths() -> Iterator[Path]:
    """Yield the files that the bridge carries, in a fixed order."""
    for pattern in _CARRIED:
        yield from sorted(_PACKAGE.glob(pattern))


def _texts() -> dict[str, str]:
    return {"": "", **{_name(path): path.read_text(encoding="utf-8") for path in carried_paths()}}


def literal(text: str) -> str:
    """Return the text as a Python literal without dollar signs, in ASCII, so that no dollar quote ends in it."""
    return ascii(text).replace("$", "\\x24")


def _name(path: Path) -> str:
    """Return the end of a module's name: ".request.task_rules", or ".request" for the folder itself."""
    parts = path.relative_to(_PACKAGE).with_suffix("").parts
    return "".join(f".{part}" for part in parts if part != "__init__")
