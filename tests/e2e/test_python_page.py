"""The Python of the user's manual runs as it is written, from the first block to the last."""

from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, Page
from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres


# By day tests/e2e/test_client.py uses the same clients.
@pytest.mark.nightly
def test_the_python_of_the_manual_runs_as_written(
    running: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = Page(ROOT / "docs" / "user" / "python.md")
    monkeypatch.setenv("TENSILE_DSN", running.database.dsn("demo"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = [block for block in page.blocks if block.info == "python"]
    for block in blocks:
        lines = "\n" * (block.line - 1) + block.text  # so that an error names the line of the page
        exec(compile(lines, page.name, "exec"), names)
    names["tensile"].close()
    assert len(blocks) >= 6
