"""The manual's links have a target, and the paths and modules it names in backticks exist. Sphinx is not needed."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Page, all_pages

PAGES = [pytest.param(page, id=page.name) for page in all_pages()]
TOP = {"indb_tensile", "sql", "native", "worker", "tests", "docs", "examples", ".ci"}
_PATH = re.compile(r"[\w.+-]+(/[\w.+-]+)+/?|[A-Z]+\.md|pyproject\.toml")
_MODULE = re.compile(r"(indb_tensile|worker|tests)(\.\w+)+")


@pytest.mark.parametrize("page", PAGES)
def test_internal_links_have_a_file_and_a_heading(page: Page) -> None:
    assert [target for target in page.links if not _has_target(page, target)] == []


@pytest.mark.parametrize("page", PAGES)
def test_paths_and_modules_in_backticks_exist(page: Page) -> None:
    assert [name for name in page.code if not _path_exists(name) or not _module_exists(name)] == []


def test_every_page_of_the_manual_is_in_the_index() -> None:
    index = Page(ROOT / "docs" / "index.md")
    listed = {
        line
        for block in index.blocks
        if block.info == "{toctree}"
        for line in block.text.splitlines()
        if line and not line.startswith(":")
    }
    pages = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").glob("**/*.md")}
    assert listed == pages - {"index"}


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("docs/conf.py", True),
        ("docs/nowhere.md", False),
        ("worker/", True),
        ("indb_tensile.scheduler.planner", True),
        ("indb_tensile.scheduler.planner.nothing_of_this_name", False),
        ("mean/average", True),  # not a path of the repository
    ],
)
def test_existing_names_are_distinguished_from_missing_names(name: str, exists: bool) -> None:
    assert (_path_exists(name) and _module_exists(name)) is exists


def _has_target(page: Page, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (page.path.parent / path).resolve() if path else page.path
    return file.exists() and (not anchor or anchor in Page(file).anchors)


def _path_exists(name: str) -> bool:
    """Tell whether a path exists. True also for other words, and for a pattern such as `policies/NAME.py`."""
    if "NAME" in name or not _PATH.fullmatch(name) or ("/" in name and name.split("/")[0] not in TOP):
        return True
    return (ROOT / name).exists()


def _module_exists(name: str) -> bool:
    """Tell whether a module exists, or a name within a module. True also for other words."""
    if not _MODULE.fullmatch(name):
        return True
    name = re.sub(r"^indb_tensile\.worker\b", "worker", name)  # the package under which `worker` is installed
    return _is_module(name) or (
        _is_module(name.rpartition(".")[0])
        and re.search(rf"\b{name.rpartition('.')[2]}\b", _source(name.rpartition(".")[0])) is not None
    )


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return any(file.exists() for file in (path.with_suffix(".py"), path.with_suffix(".pyi"), path / "__init__.py"))


def _source(module: str) -> str:
    path = ROOT / module.replace(".", "/")
    file: Path = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    return file.read_text(encoding="utf-8")
