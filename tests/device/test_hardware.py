"""The machine's memory, processors and limits bound the settings of every device."""

import logging
from pathlib import Path

import pytest

from indb_tensile.config import GIB, MIB, Settings
from indb_tensile.device.cgroup import Limit, free_bytes, memory_limit, processors
from indb_tensile.device.hardware import (
    Memory,
    address_fault,
    cores,
    disk_free_bytes,
    free_memory_bytes,
    half_of_cores,
    is_in_memory,
    last_cache_bytes,
    memory,
    memory_with_swap_bytes,
    share_of_machine,
    swap_directory,
    with_host_pool,
    with_pinned_pool,
    within_machine,
)
from indb_tensile.errors import RequestError


def machine(size_bytes: int) -> Memory:
    return Memory(size_bytes=size_bytes, whose="this machine")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def test_several_controllers_have_equal_parts_of_the_machine() -> None:
    both = Settings(devices=2, host_pool_bytes=64 * GIB)
    of_processor = share_of_machine(both, frozenset(), lambda: machine(24 * GIB), lambda _: 8 * GIB)
    assert (of_processor.capacity_bytes, of_processor.host_pool_bytes) == (6 * GIB, 2 * GIB)
    assert of_processor.threads == max(1, half_of_cores() // 2)
    assert within_machine(both, lambda: machine(12 * GIB)).host_pool_bytes == 4 * GIB
    pinned = with_pinned_pool(
        Settings(devices=2, max_jobs=1), frozenset(), lambda: machine(64 * GIB), lambda: 34 * GIB
    )
    assert pinned.host_pool_bytes == 8 * GIB
    with pytest.raises(RequestError, match=r"at most 1073741824, the memory of one of 4 controllers of this machine"):
        within_machine(Settings(devices=4), lambda: machine(4 * GIB))


def test_a_budget_beyond_the_machines_memory_is_refused_with_both_figures() -> None:
    with pytest.raises(RequestError) as refused:
        within_machine(Settings(), lambda: machine(GIB))
    assert refused.value.message == (
        "budget_bytes (TENSILE_BUDGET_BYTES) is 2147483648: it must be at most 1073741824, the memory of this "
        "machine, from which an emulated device takes its own"
    )


def test_a_host_pool_beyond_the_machines_memory_is_reduced_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert within_machine(Settings(), lambda: machine(16 * GIB)) == Settings()
    assert not caplog.records
    assert within_machine(Settings(), lambda: machine(4 * GIB)) == Settings(host_pool_bytes=2 * GIB)
    assert caplog.records[0].message == (
        "host_pool_bytes (TENSILE_HOST_POOL_BYTES) is 8589934592, more than the 2147483648 bytes that this machine"
        " has beside the device's: only these are used. Set a lower value, or add memory."
    )
    assert with_host_pool(Settings(), machine(4 * GIB)).host_pool_bytes == 4 * GIB  # a GPU has its own memory
    assert with_host_pool(Settings(), machine(GIB), GIB).host_pool_bytes == MIB  # the smallest allowed setting


def test_a_directory_with_less_space_than_the_budget_is_reported_before_jobs_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    huge = Settings(capacity_bytes=1000 * GIB, budget_bytes=1000 * GIB, memory_directory=str(tmp_path))
    with caplog.at_level(logging.WARNING):
        within_machine(huge, lambda: machine(1000 * GIB))
    assert f"memory_directory {tmp_path} has" in caplog.text


def test_an_address_space_smaller_than_the_device_is_reported_with_both_figures() -> None:
    assert address_fault(Settings(), 10 * GIB) is None
    assert address_fault(Settings(), 10 * GIB - 1) == (
        "a process may map 10737418239 bytes, and a trainer maps 10737418240: TENSILE_CAPACITY_BYTES and"
        " TENSILE_HOST_POOL_BYTES"
    )


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "1000", "memory.max": "4000"}, "a/memory.max"),
        ("0::/a/b", {"a/b/memory.max": "max"}, None),
        ("0::/", {"memory.max": "7"}, "memory.max"),  # the name space of a container
        ("0::/of/the/host", {"memory.max": "7"}, "memory.max"),
        (
            "9:memory:/d\n3:cpu,cpuacct:/d\n0::/",
            {"memory/d/memory.limit_in_bytes": "1000", "memory/memory.limit_in_bytes": "9223372036854771712"},
            "memory/d/memory.limit_in_bytes",
        ),
        ("9:memory:/d", {"memory/d/memory.limit_in_bytes": "9223372036854771712"}, None),
        (
            "3:cpu:/d\n0::/x",
            {"memory/d/memory.limit_in_bytes": "1", "unified/x/memory.max": "5"},
            "unified/x/memory.max",
        ),
        ("", {}, None),
    ],
)
def test_the_smallest_limit_of_a_control_group_and_its_parents_applies(
    tmp_path: Path, membership: str, files: dict[str, str], expected: str | None
) -> None:
    mounted = tmp_path / "cgroup"
    for name, text in files.items():
        write(mounted / name, text)
    limit = memory_limit(write(tmp_path / "membership", membership), mounted)
    path = None if expected is None else mounted / expected
    assert limit == (None if path is None else Limit(size_bytes=int(files[expected or ""]), path=path))


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "nothing", tmp_path) is None
    assert memory().size_bytes > 0


def test_a_budget_beyond_a_containers_limit_is_refused_with_the_limits_file() -> None:
    container = Memory(size_bytes=GIB, whose="this container or control group (/sys/fs/cgroup/memory.max)")
    with pytest.raises(RequestError, match=r"the memory of this container or control group \(/sys/fs/cgroup/mem"):
        within_machine(Settings(), lambda: container)


def test_free_memory_is_the_smaller_of_the_machines_and_the_control_groups(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  4096 kB\nMemAvailable:  2048 kB\nSwapTotal:  100 kB\nSwapFree:  10 kB\nHuge:  3\n")
    assert free_memory_bytes(meminfo) <= (2048 + 10) * 1024
    assert memory_with_swap_bytes(meminfo) == memory().size_bytes + 100 * 1024


@pytest.mark.parametrize(
    ("limit", "usage", "statistics"),
    [
        ("memory.max", "memory.current", "anon 300\nfile 200\nshmem 50\n"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "cache 1\nshmem 1\ntotal_cache 200\ntotal_shmem 50\n"),
    ],
)
def test_the_free_memory_of_a_control_group_includes_its_page_cache_and_excludes_shared_memory(
    tmp_path: Path, limit: str, usage: str, statistics: str
) -> None:
    (tmp_path / usage).write_text("600\n")
    (tmp_path / "memory.stat").write_text(statistics)
    assert free_bytes(Limit(size_bytes=1000, path=tmp_path / limit)) == 550


def test_the_processors_device_takes_half_of_the_memory_the_free_disk_and_the_processors() -> None:
    settings = share_of_machine(Settings(), frozenset(), lambda: machine(24 * GIB), lambda _: 10 * GIB)
    assert (settings.capacity_bytes, settings.budget_bytes, settings.host_pool_bytes) == (12 * GIB, 12 * GIB, 5 * GIB)
    assert settings.region_bytes == 2 * MIB  # limits the number of regions
    assert settings.swap_directory == ".tensile/swap"
    assert settings.torch_threads == half_of_cores() == max(1, cores() // 2)


def test_explicit_settings_of_the_processors_device_are_unchanged() -> None:
    names = frozenset({"capacity_bytes", "budget_bytes", "host_pool_bytes", "region_bytes"})
    requested = Settings(
        capacity_bytes=3 * GIB, budget_bytes=GIB, host_pool_bytes=MIB, swap_directory="/var/tmp", torch_threads=3
    )
    assert share_of_machine(requested, names, lambda: machine(24 * GIB), lambda _: 0) == requested
    with pytest.raises(RequestError, match="it must be at most 1073741824, the memory of this machine"):
        share_of_machine(
            Settings(capacity_bytes=2 * GIB), frozenset({"capacity_bytes"}), lambda: machine(GIB), lambda _: 0
        )


def test_a_budget_without_a_capacity_does_not_reduce_the_device() -> None:
    settings = share_of_machine(
        Settings(capacity_bytes=8 * GIB, budget_bytes=7 * GIB),
        frozenset({"budget_bytes"}),
        lambda: machine(8 * GIB),
        lambda _: GIB,
    )
    assert (settings.capacity_bytes, settings.budget_bytes) == (7 * GIB, 7 * GIB)


@pytest.mark.parametrize(
    ("line", "name", "text", "share"),
    [
        ("0::/job", "job/cpu.max", "150000 100000", 1.5),
        ("0::/job", "job/cpu.max", "max 100000", None),
        ("0::/job/inner", "job/cpu.max", "200000 100000", 2.0),
        ("3:cpu,cpuacct:/job", "cpu/job/cpu.cfs_quota_us", "50000", 0.5),
        ("3:cpu,cpuacct:/job", "cpu/job/cpu.cfs_quota_us", "-1", None),
    ],
)
def test_the_processor_share_is_the_limit_of_the_control_group(
    tmp_path: Path, line: str, name: str, text: str, share: float | None
) -> None:
    membership = write(tmp_path / "cgroup", line)
    write(tmp_path / "mounted" / name, text)
    write(tmp_path / "mounted/cpu/job/cpu.cfs_period_us", "100000")
    assert processors(membership, tmp_path / "mounted") == share


def test_swap_files_are_beside_the_state_unless_another_directory_is_set() -> None:
    assert swap_directory(Settings(state_dir="/var/lib/tensile")) == "/var/lib/tensile/swap"
    assert swap_directory(Settings(swap_directory="/mnt/fast")) == "/mnt/fast"
    assert is_in_memory("/dev/shm/not/there/yet")
    assert not is_in_memory("/")
    assert disk_free_bytes("/not/there/yet") > 0


def test_the_pinned_pool_of_a_gpu_is_half_of_the_memory_left_beside_the_trainers() -> None:
    def pinned(free_bytes: int, *explicit: str) -> int:
        requested = Settings(max_jobs=8, host_pool_bytes=3 * GIB if explicit else 8 * GIB)
        names = frozenset(explicit)
        return with_pinned_pool(requested, names, lambda: machine(256 * GIB), lambda: free_bytes).host_pool_bytes

    assert pinned(208 * GIB) == 100 * GIB
    assert pinned(12 * GIB) == 6 * GIB  # fewer trainers than max_jobs fit
    assert pinned(0) == MIB  # the smallest allowed setting
    assert pinned(4 * GIB, "host_pool_bytes") == 3 * GIB


def test_the_last_cache_is_the_largest_of_the_first_processor(tmp_path: Path) -> None:
    assert last_cache_bytes(tmp_path) == 0, "a system that does not say"
    for number, text in enumerate(("32K", "32K", "1024K", "32768K")):
        write(tmp_path / f"index{number}" / "size", text)
    assert last_cache_bytes(tmp_path) == 32 * MIB
    write(tmp_path / "index4" / "size", "96M")
    write(tmp_path / "index5" / "size", "unknown")
    assert last_cache_bytes(tmp_path) == 96 * MIB
