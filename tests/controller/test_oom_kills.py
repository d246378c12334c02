"""Kills for lack of memory are read from the kernel's counters, in either version of control groups."""

from pathlib import Path

from indb_tensile.controller.oom_kills import RECENT_S, OomCounters, OomKills
from indb_tensile.scheduler.admission.events import ExitCause


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def counters(folder: Path, membership: str) -> OomCounters:
    return OomCounters(
        membership=written(folder / "cgroup", membership),
        mounted=folder / "mounted",
        machine=written(folder / "vmstat", "nr_free_pages 10\noom_kill 40\n"),
    )


def test_version_2_of_control_groups_counts_for_the_own_group(tmp_path: Path) -> None:
    found = counters(tmp_path, "0::/machine/ours\n")
    written(tmp_path / "mounted/machine/ours/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert found.kills() == 2


def test_version_1_of_control_groups_counts_for_the_own_group(tmp_path: Path) -> None:
    found = counters(tmp_path, "5:cpu:/x\n4:memory:/ours\n")
    written(tmp_path / "mounted/memory/ours/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert found.kills() == 3


def test_within_a_container_the_own_group_is_what_is_mounted(tmp_path: Path) -> None:
    found = counters(tmp_path, "0::/../hosts/name\n")
    written(tmp_path / "mounted/memory.events", "oom_kill 5\n")
    assert found.kills() == 5


def test_where_no_group_tells_the_machine_does(tmp_path: Path) -> None:
    assert counters(tmp_path, "0::/\n").kills() == 40
    assert OomCounters(membership=tmp_path / "none", mounted=tmp_path, machine=tmp_path / "none").kills() is None


def test_without_a_counted_kill_the_memory_of_a_process_tells_who_sent_sigkill() -> None:
    def judged(kills: int | None, peak_bytes: int) -> ExitCause:
        return OomKills(lambda: kills, memory_bytes=lambda: 100).judge(peak_bytes)

    assert [judged(None, 49), judged(None, 50)] == [ExitCause.OUTSIDE, ExitCause.PROBABLY_STARVED]
    assert [judged(3, 89), judged(3, 90)] == [ExitCause.OUTSIDE, ExitCause.PROBABLY_STARVED]


def test_a_counted_kill_is_the_kernels_whatever_the_process_had() -> None:
    kills = [3]
    starvation = OomKills(lambda: kills[0], memory_bytes=lambda: 100)
    kills[0] = 4
    assert starvation.judge(1) is ExitCause.STARVED


def test_a_kill_is_recent_for_some_seconds_after_it_was_counted() -> None:
    now, kills = [0.0], [7]
    starvation = OomKills(lambda: kills[0], lambda: now[0])
    assert not starvation.recent(), "those before the controller began are none of its trainers"
    kills[0] = 8
    assert starvation.recent()
    now[0] = RECENT_S
    assert starvation.recent()
    now[0] = RECENT_S + 0.1
    assert not starvation.recent()


def test_a_look_dates_a_kill_that_nobody_asked_about() -> None:
    now, kills = [0.0], [7]
    starvation = OomKills(lambda: kills[0], lambda: now[0])
    now[0], kills[0] = 2.0, 8
    starvation.look()
    now[0] = 2.0 + RECENT_S + 0.1
    assert not starvation.recent()
