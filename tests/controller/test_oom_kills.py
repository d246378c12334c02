"""Check that kills for lack of memory are read from the kernel's counters, in both versions of control groups."""

from pathlib import Path

from indb_tensile.controller.oom_kills import RECENT_S, OomCounters, OomKills
from indb_tensile.scheduler.admission.events import ExitCause


def write_file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def counters(folder: Path, membership: str) -> OomCounters:
    return OomCounters(
        membership=write_file(folder / "cgroup", membership),
        mounted=folder / "mounted",
        machine=write_file(folder / "vmstat", "nr_free_pages 10\noom_kill 40\n"),
    )


def test_control_groups_version_2_count_the_kills_of_the_own_group(tmp_path: Path) -> None:
    oom_counters = counters(tmp_path, "0::/machine/ours\n")
    write_file(tmp_path / "mounted/machine/ours/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert oom_counters.kills() == 2


def test_control_groups_version_1_count_the_kills_of_the_own_group(tmp_path: Path) -> None:
    oom_counters = counters(tmp_path, "5:cpu:/x\n4:memory:/ours\n")
    write_file(tmp_path / "mounted/memory/ours/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom_counters.kills() == 3


def test_mounted_group_is_the_own_group_within_a_container(tmp_path: Path) -> None:
    oom_counters = counters(tmp_path, "0::/../hosts/name\n")
    write_file(tmp_path / "mounted/memory.events", "oom_kill 5\n")
    assert oom_counters.kills() == 5


def test_kills_of_the_machine_count_if_no_group_has_a_counter(tmp_path: Path) -> None:
    assert counters(tmp_path, "0::/\n").kills() == 40
    assert OomCounters(membership=tmp_path / "none", mounted=tmp_path, machine=tmp_path / "none").kills() is None


def test_memory_of_the_process_decides_without_a_counted_kill() -> None:
    def cause(kills: int | None, peak_bytes: int) -> ExitCause:
        return OomKills(lambda: kills, memory_bytes=lambda: 100).judge(peak_bytes)

    assert [cause(None, 49), cause(None, 50)] == [ExitCause.OUTSIDE, ExitCause.PROBABLY_STARVED]
    assert [cause(3, 89), cause(3, 90)] == [ExitCause.OUTSIDE, ExitCause.PROBABLY_STARVED]


def test_counted_kill_is_the_kernels_whatever_the_memory_of_the_process() -> None:
    kills = [3]
    oom_kills = OomKills(lambda: kills[0], memory_bytes=lambda: 100)
    kills[0] = 4
    assert oom_kills.judge(1) is ExitCause.STARVED


def test_kill_is_recent_for_some_seconds_after_it_was_counted() -> None:
    now, kills = [0.0], [7]
    oom_kills = OomKills(lambda: kills[0], lambda: now[0])
    assert not oom_kills.recent(), "a kill before the controller started is not one of its trainers"
    kills[0] = 8
    assert oom_kills.recent()
    now[0] = RECENT_S
    assert oom_kills.recent()
    now[0] = RECENT_S + 0.1
    assert not oom_kills.recent()


def test_look_dates_a_kill() -> None:
    now, kills = [0.0], [7]
    oom_kills = OomKills(lambda: kills[0], lambda: now[0])
    now[0], kills[0] = 2.0, 8
    oom_kills.look()
    now[0] = 2.0 + RECENT_S + 0.1
    assert not oom_kills.recent()
