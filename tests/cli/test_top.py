"""Check the screen of `tensile top`: its texts, and its keys on a screen that Textual draws without a terminal."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from textual.widgets import DataTable, Static

from indb_tensile.cli.top_lines import COLUMNS, device_lines, job_rows, job_text, memory_bar
from indb_tensile.cli.top_screen import JobScreen, Question, TopScreen
from indb_tensile.monitor.viewer import Viewer
from tests.cli.conftest import Tensile

DEVICE = {
    "worker_id": 1,
    "host": "h",
    "device": "emulated",
    "device_name": "emulated",
    "alive": True,
    "jobs": 3,
    "busy_percent": None,
    "capacity_bytes": 2000,
    "budget_bytes": 1000,
    "granted_bytes": 900,
    "used_bytes": 500,
    "host_bytes": 70,
}
JOB = {
    "worker_id": 1,
    "job_id": 7,
    "model": "[red]m",
    "owner": "alice",
    "granted_bytes": 500,
    "used_bytes": 300,
    "priority": 2,
    "paused": False,
    "phase": "training",
    "epoch": 3,
    "epochs": 4,
    "percent": 62.5,
    "loss": 0.5,
    "eta_s": 90.0,
    "measured_iteration_ms": 20.0,
    "predicted_iteration_ms": 10.0,
    "measured_stall_ms": 1.5,
    "swapped_bytes": 4000,
}
WAITING = {
    "job_id": 9,
    "model": "later",
    "owner": "bob",
    "priority": 0,
    "state": "queued",
    "phase": None,
    "paused": False,
    "waits_for": "memory",
    "waiting_s": 300.0,
}
FIGURES = {
    "devices": [DEVICE],
    "jobs": [JOB],
    "sets": [{"jobs": [7, 8], "foretold": 1.5, "measured": None}],
    "queue": [WAITING],
    "queue_length": 1,
}


def test_devices_have_a_line_a_bar_and_who_runs_side_by_side() -> None:
    assert device_lines(FIGURES, 20).plain.splitlines() == [
        "emulated on h  500 B used, 900 B planned, 1000 B budget, 70 B on the host, copies 195.3 kB/s each way",
        "██████░░░░▒▒▒▒▒▒▒▒··",
        "side by side: jobs 7, 8; throughput 1.5 foretold, - measured (taking turns: 1)",
    ]
    assert "tensile up" in device_lines({**FIGURES, "devices": [], "sets": []}, 20).plain


@pytest.mark.parametrize("granted", [0, 900, 1500])
@pytest.mark.parametrize("width", [1, 10, 33, 200])
@pytest.mark.parametrize("used", [0, 300, 500, 5000])
def test_a_bar_is_as_wide_as_the_screen_whatever_the_figures(width: int, used: int, granted: int) -> None:
    jobs = [{**JOB, "job_id": number, "used_bytes": used} for number in range(3)]
    assert len(memory_bar({**DEVICE, "granted_bytes": granted}, jobs, width)) == max(10, width)


def test_running_jobs_come_before_waiting_ones_and_none_twice() -> None:
    rows = job_rows({**FIGURES, "queue": [{**WAITING, "job_id": 7}, WAITING]})

    assert [str(row["job"]) for row in rows] == ["7", "9"]
    assert [str(rows[0][name]) for name, _ in COLUMNS] == [
        *(
            "7",
            "[red]m",
            "alice",
            "emulated",
            "training",
            "62 % 3/4",
            "300 B",
            "500 B",
            "20 ms",
            "1.5 ms",
            "0.5",
            "90 s",
            "",
        ),
    ]
    assert str(rows[1]["waits"]) == "memory (5 min)"


def test_the_text_of_a_job_has_its_error_epochs_plans_and_events() -> None:
    job = {"model": "m", "owner": "o", "relation": "t", "state": "failed", "phase": None, "waits_for": None}
    job |= {"error_message": "no room", "error_detail": None, "error_hint": "add some"}
    plan: dict[str, Any] = dict.fromkeys(("predicted_peak_bytes", "measured_peak_bytes", "liveness_peak_bytes"), 1024)
    plan |= {"attempt": 1, "generation": 2, "reason": "drift", "predicted_iteration_ms": 5.0, "swaps": 3}
    text = job_text(
        {
            "job": job,
            "epochs": [{"epoch": 1, "loss": 0.25, "valid_loss": None, "metrics": {"accuracy": 0.5}}],
            "plans": [{**plan, "measured_iteration_ms": None, "recomputed": 4}],
            "sharing": [{"beside": [], "stp_foretold": 1.0, "stp_measured": None}],
            "events": [{"at": "2026-01-02T03:04:05.6+00:00", "kind": "failed", "detail": {"message": "[b]no room"}}],
        }
    ).plain

    assert "m of o on t: failed" in text
    assert "no room\nadd some" in text
    assert "1  loss 0.25  valid_loss -  accuracy 0.5" in text
    assert "1.2    drift: peak 1.0 kB and 1.0 kB of 1.0 kB; iteration 5 ms and -; 3 swaps, 4 recomputed" in text
    assert "alone: 1 foretold, - measured" in text
    assert "2026-01-02 03:04:05  failed  [b]no room" in text


class RecordingViewer:
    """Answers with figures that a test sets, and records what is done."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = copy.deepcopy(FIGURES)
        self.fault: Exception | None = None
        self.done: list[tuple[str, dict[str, object]]] = []

    def read(self, work: Callable[[Any], Any]) -> Any:
        if self.fault is not None:
            raise self.fault
        return self.figures if work.__name__ == "overview" else {**_JOB_FIGURES}

    def act(self, work: Callable[[Any], Any], *, pins: bool = True) -> Any:
        return work(self)

    def execute(self, statement: str, values: dict[str, object]) -> "RecordingViewer":
        self.done.append((statement.split("(")[0].split("public.")[1], values))
        return self

    def fetchone(self) -> tuple[bool]:
        return (True,)


_JOB_FIGURES = {
    "job": {
        "model": "m",
        "owner": "o",
        "relation": "t",
        "state": "running",
        "phase": "training",
        "waits_for": None,
        "error_message": None,
    },
    "epochs": [],
    "plans": [],
    "sharing": [],
    "events": [],
}


@pytest.fixture
def viewer() -> RecordingViewer:
    """A viewer that records."""
    return RecordingViewer()


def drive(viewer: RecordingViewer, script: Callable[[TopScreen, Any], Any]) -> None:
    """Run a script of keys on the screen. Reading is renewed only when the script says so."""

    async def run() -> None:
        app = TopScreen(as_viewer(viewer), period_s=3600)
        async with app.run_test(size=(160, 40)) as pilot:
            await settle(app, pilot)
            await script(app, pilot)

    asyncio.run(run())


def as_viewer(viewer: RecordingViewer) -> Viewer:
    return viewer  # type: ignore[return-value]  # has the two methods that the screen calls


async def settle(app: TopScreen, pilot: Any) -> None:
    """Wait for the threads that read and act."""
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


def test_keys_act_on_the_job_under_the_cursor(viewer: RecordingViewer) -> None:
    async def script(app: TopScreen, pilot: Any) -> None:
        assert app.query_one(DataTable).row_count == 2
        for key in ("p", "plus", "down", "minus"):
            await pilot.press(key)
            await settle(app, pilot)

    drive(viewer, script)

    assert [(name, {k: v for k, v in values.items() if k != "reason"}) for name, values in viewer.done] == [
        ("tensile_pause", {"job": 7}),
        ("tensile_set_priority", {"job": 7, "priority": 3}),
        ("tensile_set_priority", {"job": 9, "priority": -1}),
    ]


def test_a_cancel_is_asked_for_first(viewer: RecordingViewer) -> None:
    async def script(app: TopScreen, pilot: Any) -> None:
        await pilot.press("c")
        await settle(app, pilot)
        assert isinstance(app.screen, Question)
        assert "Cancel job 7, model [red]m?" in str(app.screen.query_one("#question", Static).render())
        await pilot.press("n")
        await settle(app, pilot)
        assert viewer.done == []
        await pilot.press("c", "y")
        await settle(app, pilot)

    drive(viewer, script)

    assert [name for name, _ in viewer.done] == ["tensile_cancel"]


def test_the_cursor_stays_on_its_job_when_others_come_and_go(viewer: RecordingViewer) -> None:
    async def script(app: TopScreen, pilot: Any) -> None:
        await pilot.press("down")
        viewer.figures = {**FIGURES, "jobs": [JOB, {**JOB, "job_id": 8}]}
        app.renew()
        await settle(app, pilot)
        assert app.query_one(DataTable).cursor_row == 2
        viewer.figures = {**FIGURES, "jobs": []}
        app.renew()
        await settle(app, pilot)
        assert app.query_one(DataTable).cursor_row == 0

    drive(viewer, script)


def test_enter_looks_into_a_job_and_escape_returns(viewer: RecordingViewer) -> None:
    async def script(app: TopScreen, pilot: Any) -> None:
        await pilot.press("enter")
        await settle(app, pilot)
        assert isinstance(app.screen, JobScreen)
        assert "m of o on t: running" in str(app.screen.query_one("#job", Static).render())
        await pilot.press("escape")
        await settle(app, pilot)
        assert not isinstance(app.screen, JobScreen)

    drive(viewer, script)


def test_the_screen_says_what_is_wrong_and_goes_on(viewer: RecordingViewer) -> None:
    async def script(app: TopScreen, pilot: Any) -> None:
        viewer.fault = psycopg.OperationalError("the server is away\nand more")
        app.renew()
        await settle(app, pilot)
        assert str(app.query_one("#trouble", Static).render()) == "the server is away"
        viewer.fault = None
        app.renew()
        await settle(app, pilot)
        assert str(app.query_one("#trouble", Static).render()) == ""

    drive(viewer, script)


def test_without_a_terminal_the_command_names_the_other_one(tensile: Tensile) -> None:
    done = tensile("top")

    assert (done.code, done.err) == (
        2,
        "tensile: tensile top needs a terminal\n  hint: For a pipe or a log, use tensile watch.\n",
    )
