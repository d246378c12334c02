"""Check that the listener thread survives any notification, and wakes the controller a few times a second at most."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.catalog.notify import Listener, Notification, parse
from indb_tensile.controller.listener import ListenerThread
from indb_tensile.job import JobId
from tests.conftest import Database

DEADLINE_S = 60.0


class FakeListener:
    """A listener that returns the given notifications in order, and raises the given exceptions."""

    def __init__(self, *items: tuple[Notification, ...] | Exception) -> None:
        self.items: queue.SimpleQueue[tuple[Notification, ...] | Exception] = queue.SimpleQueue()
        for item in items:
            self.items.put(item)
        self.waits = 0
        self.closes = 0

    def wait(self, timeout_s: float) -> tuple[Notification, ...]:
        self.waits += 1
        try:
            item = self.items.get(timeout=timeout_s)
        except queue.Empty:
            return ()
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        self.closes += 1


@contextmanager
def listening(listener: "FakeListener | Listener", **pauses: float) -> Iterator["queue.SimpleQueue[Notification]"]:
    reported: queue.SimpleQueue[Notification] = queue.SimpleQueue()
    thread = ListenerThread(listener, reported.put, **pauses)
    try:
        yield reported
    finally:
        thread.close()


@pytest.mark.parametrize("error", [ValueError("5000 digits"), UnicodeDecodeError("utf8", b"\xff", 0, 1, "bad")])
def test_repeated_error_is_logged_once_and_the_thread_continues(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    listener = FakeListener(error, error, error, (Notification(kind="cancel", job=JobId(7)),))
    with listening(listener, back_off_s=0.01) as reported:
        assert reported.get(timeout=DEADLINE_S) == Notification(kind="cancel")
    assert [r.message for r in caplog.records] == [
        f"notifications cannot be received now, polling continues: {error}"
    ]
    assert listener.closes == 4, "a failed connection is closed"


def test_notifications_that_arrive_together_are_reported_once_per_kind() -> None:
    many = tuple(Notification(kind=kind, job=JobId(job)) for job in range(500) for kind in ("queued", "cancel"))
    with listening(FakeListener(many), pause_s=0.01) as reported:
        assert [reported.get(timeout=DEADLINE_S), reported.get(timeout=DEADLINE_S)] == [
            Notification(kind="queued"),
            Notification(kind="cancel"),
        ]
        with pytest.raises(queue.Empty):
            reported.get(timeout=0.1)


@given(st.text())
def test_any_payload_is_parsed_or_ignored(payload: str) -> None:
    wake = parse(payload)
    if wake is not None:
        assert payload == (wake.kind if wake.job is None else payload)
        assert wake.kind in {"queued", "cancel", "changed"}
        assert wake.job is None or 0 <= wake.job < 1 << 63


@given(st.sampled_from(["queued", "cancel", "changed"]), st.integers(min_value=0, max_value=(1 << 63) - 1))
def test_payloads_of_triggers_are_parsed(kind: str, job: int) -> None:
    assert parse(kind) == Notification(kind=kind)
    assert parse(f"{kind} {job}") == Notification(kind=kind, job=JobId(job))


@pytest.mark.parametrize(
    "payload",
    [
        "", "cancel ",  "cancel  7",
        "cancel 7 ", "cancel 7\n", "cancel -7", "cancel +7", "cancel 7.0", "cancel \u0667",
        "cancel " + "9" * 5000, f"cancel {1 << 63}", "Cancel 7", "drop 7", " cancel 7", "cancel\x007",
    ],
)  # fmt: skip
def test_payloads_that_no_trigger_sends_are_ignored(payload: str) -> None:
    assert parse(payload) is None


@pytest.mark.nightly
@pytest.mark.postgres
def test_flood_of_notifications_neither_ends_the_thread_nor_hides_a_cancel(database: Database) -> None:
    listener = Listener(database.dsn("tensile_worker"))
    with listening(listener) as reported, database.connect("demo") as user:
        user.execute("select pg_notify('tensile', 'cancel ' || repeat('9', 5000))")
        user.execute("select count(pg_notify('tensile', 'queued ' || n)) from generate_series(1, 100000) as n")
        user.execute("select pg_notify('tensile', 'cancel 7')")
        received: list[Notification] = []
        deadline = time.monotonic() + DEADLINE_S
        while Notification(kind="cancel") not in received:
            assert time.monotonic() < deadline, received
            received.append(reported.get(timeout=DEADLINE_S))
        assert len(received) < 1_000, "100,000 notifications wake the controller a few times"
        assert any(thread.name == "listener" and thread.is_alive() for thread in threading.enumerate())
