"""Comments and docstrings name files of the repository that exist."""

import re

from tests.docs.pages import ROOT

_FOLDERS = ("indb_tensile", "worker", "native", "sql")
_NAME = re.compile(r"(?<![\w.\"'/])((?:[\w-]+/)*[\w-]+\.(?:py|cpp|hpp))\b(?![\"'])")
# Files of torch, which comments cite with its versions.
_OF_TORCH = re.compile(r"(torch|aten)/.*|partitioners\.py|meta_registrations\.py")


def test_files_that_sources_name_exist() -> None:
    paths = [
        path
        for folder in (*_FOLDERS, "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".hpp", ".h", ".sql")
    ]
    parts = [path.relative_to(ROOT).parts for path in paths]
    known = {"/".join(own[start:]) for own in parts for start in range(len(own))}
    named = {
        (str(path.relative_to(ROOT)), name)
        for path, own in zip(paths, parts, strict=True)
        if own[0] in _FOLDERS
        for name in _NAME.findall(path.read_text())
    }
    assert [pair for pair in sorted(named) if pair[1] not in known and not _OF_TORCH.fullmatch(pair[1])] == []
