"""Scripts that bring an older catalog up to this version's.

A script has three parts. Policies, triggers and grants are taken down first (`sql/upgrade/prepare.sql`). Tables and
types change by steps written by hand, one file a release (`sql/upgrade/0.1.0--0.2.0.sql`): they keep the data and are
not edited after their release. Functions, views, triggers, policies, grants and comments are replaced whole by this
version's own source, so their text exists once.
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
    """One script for each older version from which `version` can be reached, by that older version.

    `directory` holds the steps. `sources` are the files of a fresh installation, in their order; placeholders in them
    are left to the caller.
    """
    steps = {(match["old"], match["new"]): path for path, match in _steps(directory)}
    code = "\n".join(_replacing(path) for path in sources)
    prepare = (directory / _PREPARE).read_text(encoding="utf-8")
    made = {}
    for old in sorted({start for start, _ in steps}):
        chain = path_between(old, version, steps)
        if chain:
            changes = [path.read_text(encoding="utf-8") for path in chain]
            made[old] = "\n".join([prepare, *changes, code])
    return made


def path_between(old: str, new: str, steps: Mapping[tuple[str, str], Path]) -> tuple[Path, ...]:
    """The shortest chain of steps from one version to another; empty where there is none."""
    reached: dict[str, tuple[Path, ...]] = {old: ()}
    waiting = [old]
    while waiting:
        at = waiting.pop(0)
        if at == new:
            return reached[at]
        for (source, target), path in sorted(steps.items()):
            if source == at and target not in reached:
                reached[target] = (*reached[at], path)
                waiting.append(target)
    return ()


def _steps(directory: Path) -> list[tuple[Path, re.Match[str]]]:
    matched = ((path, _STEP.fullmatch(path.name)) for path in sorted(directory.glob("*.sql")))
    return [(path, match) for path, match in matched if match is not None]


def _replacing(path: Path) -> str:
    """The statements of a fresh installation, as ones that replace what an older version made."""
    source = path.read_text(encoding="utf-8")
    if path.name in TABLES:
        return "\n".join(_COMMENT.findall(source))
    return _CREATE.sub("create or replace ", source)
