"""The screen of `tensile top`: devices with a memory bar by job, jobs, and what waits, renewed every second.

Built on Textual. All reading and acting goes through a `Viewer`, in threads, so that keys answer while the database
does not.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import psycopg
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from indb_tensile.cli.top_lines import COLUMNS, device_lines, job_rows, job_text
from indb_tensile.errors import TensileError
from indb_tensile.monitor import live_figures
from indb_tensile.monitor.job_actions import ACTIONS, perform
from indb_tensile.monitor.viewer import Viewer

_PLACE = "in tensile top"


class Question(ModalScreen[bool]):
    """Asks for a yes or a no."""

    CSS = """
    Question { align: center middle; }
    Question > Static { width: auto; max-width: 80%; height: auto; border: round $warning; padding: 1 2;
      background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question."""
        yield Static(f"{self._question}\n\n[b]y[/b] yes   [b]n[/b] no", id="question")

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)


class JobScreen(ModalScreen[None]):
    """All about one job: progress, epochs, plans, companions and events."""

    CSS = """
    JobScreen { align: center middle; }
    JobScreen > VerticalScroll { width: 96%; height: 92%; border: round $primary; background: $surface;
      padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "app.pop_screen", "Back")]

    def __init__(self, number: int, text: Text) -> None:
        super().__init__()
        self.number = number
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the text, in a window that scrolls."""
        with VerticalScroll() as window:
            window.border_title = f"job {self.number}"
            yield Static(self._text, id="job")

    def renew(self, text: Text) -> None:
        """Show a newer text."""
        self.query_one("#job", Static).update(text)


class TopScreen(App[None]):
    """The whole screen."""

    TITLE = "tensile top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #devices { height: auto; max-height: 50%; padding: 0 1; }
    #trouble { color: $error; height: auto; padding: 0 1; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "look", "Look into", priority=False),
        Binding("c", "cancel", "Cancel"),
        Binding("p", "pause", "Pause, resume"),
        Binding("plus,equals_sign", "priority(1)", "Priority +"),
        Binding("minus", "priority(-1)", "Priority -"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, viewer: Viewer, *, period_s: float) -> None:
        super().__init__()
        self._viewer = viewer
        self._period_s = period_s
        self.jobs: dict[int, live_figures.Row] = {}

    def compose(self) -> ComposeResult:
        """Build the screen from top to bottom."""
        with Vertical():
            yield Static("reading from the database …", id="devices", markup=False)
            yield Static("", id="trouble", markup=False)
            yield DataTable(id="jobs", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        table = self.query_one(DataTable)
        for name, title in COLUMNS:
            table.add_column(title, key=name)
        table.focus()
        self.renew()
        self.set_interval(self._period_s, self.renew)

    @work(thread=True, exclusive=True, group="renew")
    def renew(self) -> None:
        """Read once, in a thread."""
        shown = self.screen.number if isinstance(self.screen, JobScreen) else None
        figures = self._ask(lambda: self._viewer.read(live_figures.overview))
        if figures is not None:
            self.call_from_thread(self._show, figures)
        if shown is not None:
            self._read_job(shown)

    def _show(self, figures: live_figures.Row) -> None:
        self.query_one("#trouble", Static).update("")
        self.query_one("#devices", Static).update(device_lines(figures, self.size.width - 2))
        rows = job_rows(figures)
        self.jobs = {row["job_id"]: row for row in rows}
        table = self.query_one(DataTable)
        keys = [str(row["job_id"]) for row in rows]
        if [row.key.value for row in table.ordered_rows] == keys:
            for place, row in enumerate(rows):
                for column, (name, _) in enumerate(COLUMNS):
                    table.update_cell_at(Coordinate(place, column), row[name], update_width=True)
            return
        chosen = self._chosen()
        table.clear()
        for row, key in zip(rows, keys, strict=True):
            table.add_row(*(row[name] for name, _ in COLUMNS), key=key)
        if chosen is not None and str(chosen) in keys:
            table.move_cursor(row=keys.index(str(chosen)), animate=False)

    def _chosen(self) -> int | None:
        table = self.query_one(DataTable)
        if not table.row_count:
            return None
        key = table.coordinate_to_cell_key(Coordinate(table.cursor_row, 0)).row_key.value
        return None if key is None else int(key)

    # Keys ----------------------------------------------------------------------------------------------------------

    def on_data_table_row_selected(self) -> None:
        """Look into the job under the cursor: the table takes the key enter itself."""
        self.action_look()

    def action_look(self) -> None:
        """Open the window of the chosen job."""
        number = self._chosen()
        if number is not None:
            self._open_job(number)

    @work(thread=True, group="look")
    def _open_job(self, number: int) -> None:
        self._read_job(number)

    def _read_job(self, number: int) -> None:
        figures = self._ask(lambda: self._viewer.read(lambda c: live_figures.job(c, number)))
        if figures is not None:
            self.call_from_thread(self._show_job, number, job_text(figures))

    def _show_job(self, number: int, text: Text) -> None:
        if isinstance(self.screen, JobScreen):
            if self.screen.number == number:
                self.screen.renew(text)
        elif not isinstance(self.screen, ModalScreen):
            self.push_screen(JobScreen(number, text))

    def action_cancel(self) -> None:
        """Ask, and then cancel the chosen job."""
        number = self._chosen()
        if number is None:
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._act("cancel", job=number)

        question = f"Cancel job {number}, model {self.jobs[number]['model']}?"
        self.push_screen(Question(question.replace("[", "\\[")), answered)

    def action_pause(self) -> None:
        """Pause the chosen job, or resume it if it is paused."""
        number = self._chosen()
        if number is not None:
            self._act("resume" if self.jobs[number]["paused"] else "pause", job=number)

    def action_priority(self, change: int) -> None:
        """Raise or lower the priority of the chosen job."""
        number = self._chosen()
        if number is not None:
            self._act("priority", job=number, priority=self.jobs[number]["priority"] + change)

    @work(thread=True, group="act")
    def _act(self, name: str, **values: Any) -> None:
        action = ACTIONS[name]
        done = self._ask(
            lambda: self._viewer.act(lambda c: perform(c, action, values, _PLACE), pins=action.pins_search_path)
        )
        if done is not None:
            self.call_from_thread(self.notify, done["message"])
        self.renew()

    def _ask(self, question: Callable[[], live_figures.Row]) -> live_figures.Row | None:
        """Return the answer, or show what is wrong and return None."""
        try:
            return question()
        except TensileError as error:
            trouble = ". ".join(filter(None, (error.message, error.hint)))
        except psycopg.Error as error:
            trouble = error.diag.message_primary or str(error).strip().partition("\n")[0]
        self.call_from_thread(self.query_one("#trouble", Static).update, trouble)
        return None
