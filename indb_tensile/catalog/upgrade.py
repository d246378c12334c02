"""Composes the scripts that upgrade the catalog of an older version to this version.

A script has three parts. First it drops policies and triggers and revokes grants (`sql/upgrade/prepare.sql`). Then
steps written by hand change tables and types and keep the data, one file for each release
(`sql/upgrade/0.1.0--0.2.0.sql`); a step is not edited after its release. Last it replaces functions, views, triggers,
policies, grants and comments by those of this version's own source, so their text exists only once.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

TABLES = ("10_schema.sql", "20_tables.sql")  # files whose changes need steps

_PREPARE = "prepare.sql"
_STEP = re.compile(r"(?P<old>[^-]+)--(?P<new>[^-]+)\.sql")
_CREATE = re.compile(r"^create (?=function|procedure|view|trigger)", re.MULTILINE)
_COMMENT = re.compile(r"^comment on .*?';$", re.MULTILINE | re.DOTALL)


def scripts(directory: Path, version: str, sources: Iterable[Path]) -> dict[str, str]:
    """Return the upgrade scripts to `version`, by the older version that each one starts from.

    `directory` holds the steps. `sources` are the files of a fresh installation, in their order. The caller replaces
    the placeholders in them.
    """
    steps = {(match["old"], match["new"]): path for path, match in _steps(directory)}
    code = "\n".join(_replacing(path) for path in sources)
    prepare = (directory / _PREPARE).read_text(encoding="utf-8")
    by_version = {}
    for old in sorted({start for start, _ in steps}):
        chain = path_between(old, version, steps)
        if chain:
            changes = [path.read_text(encoding="utf-8") for path in chain]
            by_version[old] = "\n".join([prepare, *changes, code])
    return by_version


def path_between(old: str, new: str, steps: Mapping[tuple[str, str], Path]) -> tuple[Path, ...]:
    """Return the shortest chain of steps from version `old` to version `new`; empty if there is none."""
    chains: dict[str, tuple[Path, ...]] = {old: ()}
    queue = [old]
    while queue:
        version = queue.pop(0)
        if version == new:
            return chains[version]
        for (source, target), path in sorted(steps.items()):
            if source == version and target not in chains:
                chains[target] = (*chains[version], path)
                queue.append(target)
    return ()


def _steps(directory: Path) -> list[tuple[Path, re.Match[str]]]:
    matched = ((path, _STEP.fullmatch(path.name)) for path in sorted(directory.glob("*.sql")))
    return [(path, match) for path, match in matched if match is not None]


def _replacing(path: Path) -> str:
    """Return the statements of a source file, changed so that they replace the objects of an older version."""
    source = path.read_text(encoding="utf-8")
    if path.name in TABLES:
        return "\n".join(_COMMENT.findall(source))
    return _CREATE.sub("create or replace ", source)
