"""The parts of a chaos run that need no server: drawn events, the judgement of a job's end, and the forwarder."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.bench.harness.chaos.chaos_client import is_outage
from indb_tensile.bench.harness.chaos.chaos_events import (
    CHEAP,
    LONGEST_LEASES,
    LONGEST_PAUSE_S,
    ChaosEventKind,
    draw_events,
    parse_kinds,
)
from indb_tensile.bench.harness.chaos.chaos_forwarder import Forwarder
from indb_tensile.bench.harness.chaos.chaos_progress import ChaosProgress
from indb_tensile.bench.harness.chaos.chaos_verdict import BAD, Fate, JobEnding, fate, is_clean, judge
from indb_tensile.errors import RequestError

REFERENCES = {"chaos_a_first": "aa", "chaos_b_first": "bb"}
SUCCEEDED = JobEnding(job=1, training="chaos_a_first", state="succeeded", ends=1, digests=("aa",))
FAILED = JobEnding(
    job=2, training="chaos_a_first", state="failed", ends=1, digests=(), sqlstate="58000", message="gone 7"
)


def test_a_seed_draws_the_same_events_each_time() -> None:
    kinds = tuple(ChaosEventKind)
    events = list(islice(draw_events(7, kinds, 6.0), 100))
    assert list(islice(draw_events(7, kinds, 6.0), 100)) == events
    assert list(islice(draw_events(8, kinds, 6.0), 100)) != events


def test_each_kind_is_drawn_once_before_any_kind_is_drawn_again() -> None:
    kinds = [event.kind for event in islice(draw_events(1, tuple(ChaosEventKind), 6.0), 3 * len(ChaosEventKind))]
    rounds = [kinds[at : at + len(ChaosEventKind)] for at in range(0, len(kinds), len(ChaosEventKind))]
    assert [sorted(round_kinds) for round_kinds in rounds] == [sorted(ChaosEventKind)] * 3
    assert rounds[0] != rounds[1]


def test_events_last_within_their_kinds_bounds_and_are_numbered() -> None:
    events = list(islice(draw_events(3, tuple(ChaosEventKind), 6.0), 500))
    assert [event.number for event in events] == list(range(1, 501))
    assert all(0 <= event.hold_s <= LONGEST_LEASES.get(event.kind, 0.0) * 6.0 for event in events)
    assert all(0 <= event.pause_s <= LONGEST_PAUSE_S for event in events)
    assert any(event.hold_s > 6.0 for event in events), "no event outlasts a lease, so no job is ever taken over"
    assert {event.pick(3) for event in events} == {0, 1, 2}


def test_no_kinds_draw_no_events() -> None:
    assert list(draw_events(1, (), 6.0)) == []


def test_kinds_are_read_by_name_and_by_group() -> None:
    assert parse_kinds("cheap") == CHEAP
    assert parse_kinds("all") == tuple(ChaosEventKind)
    assert parse_kinds("fill_disk, kill_trainer,fill_disk") == (ChaosEventKind.FILL_DISK, ChaosEventKind.KILL_TRAINER)


def test_of_250_signals_200_kill_and_50_stop() -> None:
    counts = Counter(event.kind for event in islice(draw_events(1, parse_kinds("signals"), 6.0), 250))
    assert counts == {
        ChaosEventKind.KILL_TRAINER: 125,
        ChaosEventKind.KILL_CONTROLLER: 75,
        ChaosEventKind.STOP_TRAINER: 25,
        ChaosEventKind.STOP_CONTROLLER: 25,
    }


def test_an_unknown_kind_is_named_in_the_error() -> None:
    with pytest.raises(RequestError, match="'flood', which is no kind of event"):
        parse_kinds("kill_trainer,flood")


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (SUCCEEDED, Fate.SUCCEEDED),
        (replace(SUCCEEDED, digests=("bb",)), Fate.WRONG_BITS),
        (replace(SUCCEEDED, training="chaos_unknown"), Fate.WRONG_BITS),
        (replace(SUCCEEDED, digests=("aa", "aa")), Fate.PUBLISHED_TWICE),
        (replace(SUCCEEDED, digests=()), Fate.PUBLISHED_WRONGLY),
        (replace(SUCCEEDED, ends=2), Fate.ENDED_TWICE),
        (replace(SUCCEEDED, asked_to_cancel=True), Fate.SUCCEEDED),  # the cancel request was too late
        (replace(SUCCEEDED, state="running", ends=0, digests=()), Fate.LOST),
        (replace(SUCCEEDED, state=None, ends=0, digests=()), Fate.LOST),
        (replace(SUCCEEDED, state="cancelled", digests=(), asked_to_cancel=True), Fate.CANCELLED),
        (replace(SUCCEEDED, state="cancelled", digests=()), Fate.CANCELLED_UNASKED),
        (FAILED, Fate.FAILED_WITHOUT_FAULT),
        (replace(FAILED, digests=("aa",)), Fate.PUBLISHED_WRONGLY),
        (replace(FAILED, sqlstate="42P01"), Fate.FAILED_WITHOUT_FAULT),  # no event dropped its table
        (replace(FAILED, spoiled=True), Fate.FAILED_WITHOUT_FAULT),  # an event did, but the error has another cause
        (replace(FAILED, spoiled=True, sqlstate="42704"), Fate.FAILED_BY_OWN_FAULT),
        (replace(FAILED, spoiled=True, sqlstate=None), Fate.FAILED_WITHOUT_FAULT),
    ],
)
def test_a_jobs_fate_follows_from_its_end_and_its_owners_actions(ending: JobEnding, expected: Fate) -> None:
    assert fate(ending, REFERENCES) is expected


def test_errors_are_counted_without_their_numbers_and_paths() -> None:
    first, second = (replace(FAILED, job=n, message=f'gone {n} at "/tmp/x{n}y/z"') for n in (2, 3))
    endings = [SUCCEEDED, first, second]
    report = judge(endings, REFERENCES)
    assert (report["jobs"], report["succeeded"], report["failed_without_fault"]) == (3, 1, 2)
    assert report["undue_causes"] == {'58000: gone N at "PATH"': 2}
    assert report["jobs_at_fault"] == [2, 3]


def clean_report() -> dict[str, Any]:
    return judge([SUCCEEDED], REFERENCES) | dict.fromkeys(BAD, 0)


def test_a_report_without_a_fault_is_clean() -> None:
    assert is_clean(clean_report())


@pytest.mark.parametrize(
    "planted",
    [
        replace(SUCCEEDED, digests=("ab",)),
        replace(SUCCEEDED, state="queued", ends=0, digests=()),
        FAILED,
        replace(SUCCEEDED, digests=("aa", "aa")),
    ],
    ids=["changed weights", "a job that never ends", "a failure without the job's fault", "two versions"],
)
def test_a_planted_fault_makes_a_report_unclean(planted: JobEnding) -> None:
    assert not is_clean(clean_report() | judge([SUCCEEDED, replace(planted, job=9)], REFERENCES))


@pytest.mark.parametrize("name", BAD)
def test_every_fault_and_every_remaining_resource_makes_a_report_unclean(name: str) -> None:
    assert not is_clean(clean_report() | {name: 1})


def test_a_client_distinguishes_an_outage_from_a_fault() -> None:
    assert all(is_outage(state) for state in ("57P03", "57P01", "08006", "53100", "53300", "57014", "no connection"))
    assert not any(is_outage(state) for state in ("XX000", "42501", "P0001", "58000"))


def test_a_test_that_a_signal_ends_says_what_it_has_done_and_what_was_not_checked() -> None:
    progress = ChaosProgress(planned=9)
    assert (progress.event_figures()["events"], progress.prediction_figures()) == (0, {})
    for kind, recovery_s in (("kill_trainer", 0.5), ("fill_disk", 2.5), ("kill_trainer", 1.5)):
        progress.events[kind] += 1
        progress.record_recovery(kind, recovery_s)
    assert progress.event_figures() == {
        "events": 3,
        "events_by_kind": {"kill_trainer": 2, "fill_disk": 1},
        "longest_recovery_s": 2.5,
        "slowest_to_recover_from": "fill_disk",
        "not_recovered": 0,
    }
    assert progress.interruption("SIGTERM") == (
        "SIGTERM ended the chaos test after 3 of 9 events; "
        "the bits and endings of its jobs and what it left behind were not checked"
    )


class Echo:
    """A server on a Unix socket that returns every byte it receives."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection:
            try:
                while chunk := connection.recv(1 << 16):
                    connection.sendall(chunk)
            except ConnectionError:
                return


@pytest.fixture
def forwarder(tmp_path: Path) -> Iterator[Forwarder]:
    with closing(Echo(tmp_path / "echo")), closing(Forwarder(tmp_path / "link", tmp_path / "echo")) as made:
        yield made


def connected(tmp_path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10.0)
    client.connect(str(tmp_path / "link"))
    return client


def answer(client: socket.socket, words: bytes) -> bytes:
    client.sendall(words)
    return client.recv(len(words))


def is_broken(client: socket.socket) -> bool:
    try:
        client.sendall(b"?")
        return client.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.usefixtures("forwarder")
def test_a_forwarder_passes_data_in_both_directions(tmp_path: Path) -> None:
    with connected(tmp_path) as first, connected(tmp_path) as second:
        assert (answer(first, b"first"), answer(second, b"second")) == (b"first", b"second")


def test_a_cut_breaks_every_connection_and_accepts_new_ones(forwarder: Forwarder, tmp_path: Path) -> None:
    with connected(tmp_path) as first, connected(tmp_path) as second:
        assert (answer(first, b"x"), answer(second, b"y")) == (b"x", b"y")
        assert forwarder.cut() == 2
        assert is_broken(first)
        assert is_broken(second)
    with connected(tmp_path) as later:
        assert answer(later, b"z") == b"z"


def test_a_stall_delays_data_until_it_is_healed(forwarder: Forwarder, tmp_path: Path) -> None:
    with connected(tmp_path) as client:
        assert answer(client, b"x") == b"x"
        forwarder.stall()
        client.sendall(b"held back")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        forwarder.heal()
        client.settimeout(10.0)
        assert client.recv(9) == b"held back"


def test_a_forwarder_that_refuses_breaks_old_and_new_connections(forwarder: Forwarder, tmp_path: Path) -> None:
    with connected(tmp_path) as client:
        assert answer(client, b"x") == b"x"
        assert forwarder.refuse() == 1
        assert is_broken(client)
    with connected(tmp_path) as refused:
        assert is_broken(refused)
    forwarder.heal()
    with connected(tmp_path) as client:
        assert answer(client, b"y") == b"y"


def test_a_forwarder_that_closes_breaks_connections_that_it_stalls_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Echo(tmp_path / "echo")):
        forwarder = Forwarder(tmp_path / "link", tmp_path / "echo")
        with connected(tmp_path) as client, connected(tmp_path) as idle:
            assert (answer(client, b"x"), answer(idle, b"y")) == (b"x", b"y")
            forwarder.stall()
            client.sendall(b"held back")
            forwarder.close()
            assert is_broken(client)
            assert is_broken(idle)
    assert (caplog.text, capsys.readouterr().err) == ("", "")


def test_a_connection_to_a_missing_server_is_broken(tmp_path: Path) -> None:
    with closing(Forwarder(tmp_path / "link", tmp_path / "nothing")), connected(tmp_path) as client:
        assert is_broken(client)
