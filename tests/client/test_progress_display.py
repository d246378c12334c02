"""Check how the progress of a job is shown in a terminal, in a notebook and elsewhere."""

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from indb_tensile.client.progress_display import (
    HtmlDisplay,
    LineDisplay,
    TerminalDisplay,
    choose_display,
    progress_html,
)

JOB: dict[str, Any] = {
    "job_id": 7,
    "model": "<b>\x1b[31m",
    "state": "running",
    "phase": "training",
    "metric": None,
    "metric_name": None,
    "error_message": None,
}
PROGRESS: dict[str, Any] = {
    "percent": 25,
    "epoch": 1,
    "epochs": 4,
    "loss": 0.5,
    "valid_loss": 0.25,
    "used_bytes": 1 << 20,
    "granted_bytes": 2 << 20,
}
DONE = JOB | {"state": "succeeded", "phase": None, "metric": 0.75, "metric_name": "accuracy"}
FAILED = JOB | {"state": "failed", "phase": None, "error_message": "no rows"}


def test_html_names_job_share_and_facts_and_escapes_names() -> None:
    shown = progress_html(JOB, PROGRESS)
    assert "<b>" not in shown
    assert "\x1b" not in shown
    assert 'value="25.0"' in shown
    assert "epoch 1/4  loss 0.5000  valid loss 0.2500  1.0 MB of 2.0 MB" in shown


def test_lines_come_for_news_only() -> None:
    lines: list[str] = []
    with LineDisplay(lines.append) as display:
        for progress in (PROGRESS, PROGRESS | {"percent": 27}, PROGRESS | {"percent": 31}):
            display.show(JOB | {"model": "m"}, {name: progress[name] for name in ("percent", "epoch", "epochs")})
        display.show(DONE | {"model": "m"}, {})
        display.show(FAILED | {"model": "m"}, {})
    assert lines == [
        "job 7 m: training  25 %  epoch 1/4",
        "job 7 m: training  31 %  epoch 1/4",
        "job 7 m: succeeded  100 %  accuracy 0.7500",
        "job 7 m: failed  0 %  no rows",
    ]


def test_terminal_shows_a_bar() -> None:
    written = io.StringIO()
    with TerminalDisplay(Console(file=written, force_terminal=True, width=120)) as display:
        display.show(DONE | {"model": "[m]"}, {})
    assert "job 7 [m]: succeeded" in written.getvalue()
    assert "100 %" in written.getvalue()


def test_a_notebook_gets_html_that_is_replaced_without_ipywidgets(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda value: shown.append(value))
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(config={"IPKernelApp": {}})  # type: ignore[attr-defined]
    display.HTML = lambda text: text  # type: ignore[attr-defined]
    display.display = lambda _value, display_id: handle if display_id else None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    chosen = choose_display()
    assert isinstance(chosen, HtmlDisplay)
    with chosen:
        chosen.show(JOB, PROGRESS)
    assert shown == [progress_html(JOB, PROGRESS)]
    monkeypatch.setattr(ipython, "get_ipython", lambda: None)
    assert isinstance(choose_display(), LineDisplay)
