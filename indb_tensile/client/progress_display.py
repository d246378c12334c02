"""Shows the progress of a job: a bar in a terminal, a widget in a notebook, and lines elsewhere.

The widget is HTML that the notebook replaces in its place, so it needs no ipywidgets.
"""

import html
import sys
from collections.abc import Callable
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from indb_tensile.job import JobState
from indb_tensile.log import escaped
from indb_tensile.sizes import size

Record = dict[str, Any]
_PERCENT = 100.0
_TENTH = 10.0


class ProgressDisplay(Protocol):
    """A place that shows how a job stands."""

    def show(self, job: Record, progress: Record) -> None:
        """Show the present state."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def choose_display() -> ProgressDisplay:
    """Return the display for this program's surroundings."""
    show_html = _notebook()
    if show_html is not None:
        return HtmlDisplay(show_html)
    console = Console(stderr=True)
    return TerminalDisplay(console) if console.is_terminal else LineDisplay(lambda text: print_line(text))


def print_line(text: str) -> None:
    """Write a line on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class TerminalDisplay:
    """A bar that is redrawn in its place."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("", total=_PERCENT, facts="")

    def show(self, job: Record, progress: Record) -> None:
        """Redraw the bar."""
        self._bar.update(
            self._task, description=title(job), completed=percent(job, progress), facts=facts(job, progress)
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class HtmlDisplay:
    """A bar in a notebook. `show_html` replaces what it showed before."""

    def __init__(self, show_html: Callable[[str], None]) -> None:
        self._show_html = show_html

    def show(self, job: Record, progress: Record) -> None:
        """Replace the bar."""
        self._show_html(progress_html(job, progress))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class LineDisplay:
    """A line for each change of the phase and each tenth of the job."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._last: object = None

    def show(self, job: Record, progress: Record) -> None:
        """Write a line if there is something new."""
        key = (job["state"], job["phase"], int(percent(job, progress) / _TENTH))
        if key != self._last:
            self._last = key
            parts = (title(job), f"{percent(job, progress):.0f} %", facts(job, progress))
            self._write("  ".join(part for part in parts if part))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def title(job: Record) -> str:
    """Return the job's number, model and phase."""
    return f"job {job['job_id']} {escaped(job['model'])}: {job['phase'] or job['state']}"


def percent(job: Record, progress: Record) -> float:
    """Return how much of the job is done. A job that ended well is done."""
    if job["state"] == JobState.SUCCEEDED:
        return _PERCENT
    return float(progress.get("percent") or 0)


def facts(job: Record, progress: Record) -> str:
    """Return epoch, losses and memory of a running job, the metric of an ended one, or its error."""
    if job["state"] == JobState.FAILED:
        return escaped(job["error_message"] or "")
    if job["metric"] is not None:
        return f"{job['metric_name']} {job['metric']:.4f}"
    parts = []
    if progress.get("epochs"):
        parts.append(f"epoch {progress['epoch']}/{progress['epochs']}")
    for name, words in (("loss", "loss"), ("valid_loss", "valid loss")):
        if progress.get(name) is not None:
            parts.append(f"{words} {progress[name]:.4f}")
    if progress.get("granted_bytes"):
        parts.append(f"{size(progress['used_bytes'])} of {size(progress['granted_bytes'])}")
    return "  ".join(parts)


def progress_html(job: Record, progress: Record) -> str:
    """Return the bar as HTML. Texts of the database are escaped."""
    done = percent(job, progress)
    return (
        '<div role="group" style="font-family: sans-serif">'
        f"<div>{html.escape(title(job))}</div>"
        f'<progress max="100" value="{done:.1f}" aria-label="{html.escape(title(job))}">{done:.0f} %</progress> '
        f"<span>{done:.0f} %</span> <span>{html.escape(facts(job, progress))}</span></div>"
    )


def _notebook() -> Callable[[str], None] | None:
    """Return what shows HTML in the notebook that runs this program, or None outside of one."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    if running is None or "IPKernelApp" not in getattr(running, "config", {}):
        return None
    from importlib import import_module

    display: Any = import_module("IPython.display")
    handle = display.display(display.HTML(""), display_id=True)
    return lambda text: handle.update(display.HTML(text))
