"""Describes this machine's device: the name under which the catalog stores operators, a first speed, and its memory.

The memory of the emulated device and of the CPU device is the machine's own, set aside when a region is first used.
Without the checks here, settings that exceed the machine's memory would fail only when a job uses that memory.
"""

import contextlib
import ctypes
import logging
import os
import platform
import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from indb_tensile.config import GIB, MIB, Settings, variable
from indb_tensile.device import cgroup
from indb_tensile.device.cgroup import memory_limit
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.timing.latency import DeviceSpeed

log = logging.getLogger("controller")

_MOST_REGIONS = 8192  # a process reads every region's word when it looks for new regions: 10 us for this many

# One core of a server CPU: the rates that its vector units and its share of the memory give a float32 kernel. The
# values only have to rank operators until they are measured, and calibration measures before anything is planned.
PROCESSOR_SPEED = DeviceSpeed(flops_per_s=100_000_000_000, bytes_per_s=10_000_000_000, launch_ns=5_000)


def emulated_kind(threads: int) -> str:
    """Return `emulated:`, the processor's name and the threads of an operator if it has several.

    The processor and the threads decide how long operators take.
    """
    return f"emulated:{processor()}{f', {threads} threads' * (threads != 1)}"


def cpu_kind(threads: int) -> str:
    """Return `cpu:`, the processor's name and the threads of an operator, on which the operator's time depends."""
    return f"cpu:{processor()}, {threads} thread{'s' * (threads != 1)}"


def cores() -> int:
    """Return how many processors this process may use: its CPU affinity, limited by its control group's quota."""
    bound = len(os.sched_getaffinity(0))
    quota = cgroup.processors()
    return bound if quota is None else max(1, min(bound, int(quota)))


def half_of_cores() -> int:
    """Return the default number of threads of a job. The other half is for the database and for other jobs."""
    return max(1, cores() // 2)


def last_cache_bytes(directory: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the processor's largest cache, or 0 if the system does not say."""
    sizes_bytes = [0]
    for path in directory.glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        number, unit = text[:-1], text[-1:]
        if number.isdigit() and unit in _CACHE_UNITS:
            sizes_bytes.append(int(number) * _CACHE_UNITS[unit])
    return max(sizes_bytes)


_CACHE_UNITS = {"K": 1024, "M": MIB}  # of the sizes that Linux writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory that all processes on this machine can have together, and what sets that limit."""

    size_bytes: int
    whose: str

    def divided(self, parts: int) -> "Memory":
        """Return the equal part that each of several controllers on this machine has."""
        if parts <= 1:
            return self
        return Memory(size_bytes=self.size_bytes // parts, whose=f"one of {parts} controllers of {self.whose}")


def memory() -> Memory:
    """Return the machine's memory, or the limit of this process's control group if that is lower."""
    machine = Memory(size_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), whose="this machine")
    limit = memory_limit()
    if limit is None or limit.size_bytes >= machine.size_bytes:
        return machine
    return Memory(size_bytes=limit.size_bytes, whose=f"this container or control group ({limit.path})")


def memory_with_swap_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the memory limit plus swap space, because a control group's limit may leave out swap space."""
    return memory().size_bytes + _meminfo_bytes(meminfo).get("SwapTotal", 0)


def free_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes that a process could allocate now, including swap space."""
    meminfo_bytes, limit = _meminfo_bytes(meminfo), memory_limit()
    swap_bytes = meminfo_bytes.get("SwapFree", 0)
    machine_bytes = meminfo_bytes.get("MemAvailable", memory().size_bytes)
    group_bytes = machine_bytes if limit is None else cgroup.free_bytes(limit)
    return min(machine_bytes, group_bytes) + swap_bytes


def swap_directory(settings: Settings) -> str:
    """Return the directory for swapped-out data: by default on the disk of `state_dir`."""
    return settings.swap_directory or str(Path(settings.state_dir) / "swap")


def rows_directory(settings: Settings) -> str:
    """Return the directory for the rows of large tables: by default on the disk of `state_dir`."""
    return settings.rows_directory or str(Path(settings.state_dir) / "rows")


def read_limit_bytes(settings: Settings) -> int:
    """Return the memory that a trainer may use for the rows of its table."""
    return settings.read_limit_bytes or memory().divided(settings.devices).size_bytes // _READ_SHARE


# The rows of one training may take half of all memory. The other half is for the memory of an emulated device, the
# host pool, and other trainers, whose use is checked before the rows are read.
_READ_SHARE = 2


def disk_free_bytes(directory: str) -> int:
    """Return the free bytes on the disk of a directory that need not exist yet; 0 if unknown."""
    path = Path(directory).absolute()
    for parent in (path, *path.parents):
        try:
            statistics = os.statvfs(parent)
        except OSError:
            continue
        return statistics.f_bavail * statistics.f_frsize
    return 0


def is_in_memory(directory: str) -> bool:
    """Return whether a directory is on a file system in memory. Swapping to such a directory saves no memory."""
    path, longest_root, file_system = Path(directory).absolute(), "", ""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    for line in lines:
        _, mounted, kind, *_ = line.split(" ")
        root = mounted.replace("\\040", " ")
        if path.is_relative_to(root) and len(root) >= len(longest_root):
            longest_root, file_system = root, kind
    return file_system in ("tmpfs", "ramfs")


def _meminfo_bytes(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in lines)
    return {name: int(words[0]) * 1024 for name, text in pairs if (words := text.split()) and words[-1] == "kB"}


def room_bytes(settings: Settings) -> int:
    """Return the memory available to an emulated device: the machine's, and no more than its file system has free."""
    if not settings.memory_directory:
        return memory().size_bytes
    try:
        statistics = os.statvfs(settings.memory_directory)
    except OSError:
        return 0
    return min(statistics.f_bavail * statistics.f_frsize, memory().size_bytes)


def trim_heap() -> None:
    """Return freed memory to the machine. The C library otherwise keeps some of it for later allocations."""
    with contextlib.suppress(AttributeError):  # glibc's own
        ctypes.CDLL(None).malloc_trim(0)


def directory_fault(settings: Settings) -> str | None:
    """Return why an emulated device's memory cannot be created in the configured directory, or None if it can."""
    if not settings.memory_directory:
        return None
    try:
        os.close(os.open(settings.memory_directory, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600))
    except OSError as error:
        return error.strerror or str(error)
    return None


def address_fault(settings: Settings, limit_bytes: int | None = None) -> str | None:
    """Return why a trainer could not map an emulated device and the host pool, or None if it can.

    `limit_bytes` is the address space that a process may map; the default is this process's own limit.
    """
    most_bytes = resource.getrlimit(resource.RLIMIT_AS)[0] if limit_bytes is None else limit_bytes
    mapped_bytes = settings.capacity_bytes + settings.host_pool_bytes
    if most_bytes == resource.RLIM_INFINITY or mapped_bytes <= most_bytes:
        return None
    return (
        f"a process may map {most_bytes} bytes, and a trainer maps {mapped_bytes}: {variable('capacity_bytes')} and "
        f"{variable('host_pool_bytes')}"
    )


_SWAPPED_SHARE = 2  # swap files may use 1/2 of the free disk space


def share_of_machine(
    settings: Settings,
    configured: frozenset[str],
    measure: Callable[[], Memory] = memory,
    free: Callable[[str], int] = disk_free_bytes,
) -> Settings:
    """Return the settings of the CPU device: each setting not named in `configured` is derived from the machine.

    The device gets half of the memory. The rest is for the database, the tables that trainers read, and the trainers
    themselves. Swapping may use half of the disk's free space. Raises RequestError for a budget larger than the
    machine's memory.
    """
    limit = measure().divided(settings.devices)
    controllers = max(1, settings.devices)
    region_bytes, capacity_bytes = settings.region_bytes, settings.capacity_bytes
    if "capacity_bytes" not in configured:
        capacity_bytes = max(MIB, limit.size_bytes // 2, settings.budget_bytes if "budget_bytes" in configured else 0)
    if "region_bytes" not in configured:
        while capacity_bytes // region_bytes > _MOST_REGIONS:
            region_bytes *= 2
    capacity_bytes = max(region_bytes, capacity_bytes - capacity_bytes % region_bytes)
    budget_bytes = settings.budget_bytes if "budget_bytes" in configured else capacity_bytes
    if budget_bytes > limit.size_bytes:
        raise RequestError(
            f"budget_bytes ({variable('budget_bytes')}) is {budget_bytes}: it must be at most {limit.size_bytes}, "
            f"the memory of {limit.whose}, from which this device takes its own",
            hint="Set a budget that leaves memory for the database and the trainers, or add memory.",
        )
    pool_bytes = settings.host_pool_bytes
    if "host_pool_bytes" not in configured:
        pool_bytes = max(MIB, min(pool_bytes, free(swap_directory(settings)) // _SWAPPED_SHARE // controllers))
    return replace(
        settings,
        region_bytes=region_bytes,
        capacity_bytes=capacity_bytes,
        budget_bytes=min(budget_bytes, capacity_bytes),
        host_pool_bytes=pool_bytes,
        swap_directory=swap_directory(settings),
        torch_threads=settings.torch_threads or max(1, half_of_cores() // controllers),
    )


def within_machine(settings: Settings, measure: Callable[[], Memory] = memory) -> Settings:
    """Return the settings of an emulated device, with the host pool limited to the memory that the device leaves.

    Raises RequestError for a budget larger than the machine's memory.
    """
    limit = measure().divided(settings.devices)
    if settings.budget_bytes > limit.size_bytes:
        raise RequestError(
            f"budget_bytes ({variable('budget_bytes')}) is {settings.budget_bytes}: it must be at most"
            f" {limit.size_bytes}, the memory of {limit.whose}, from which an emulated device takes its own",
            hint="Set a budget that leaves memory for the database and the trainers, or add memory.",
        )
    left_bytes = room_bytes(settings)
    if settings.memory_directory and 0 < left_bytes < settings.budget_bytes:  # 0: no device can be created at all
        log.warning(
            "memory_directory %s has %d bytes free, less than the budget of %d: jobs return to the queue when the "
            "directory is full. Free space there, enlarge it (mount -o remount,size=...), or lower budget_bytes.",
            settings.memory_directory,
            left_bytes,
            settings.budget_bytes,
        )
    return with_host_pool(settings, limit, settings.budget_bytes)


_TRAINER_BYTES = GIB  # a trainer's own memory: Python, torch and the data read
_LEAST_SHARE = 8  # the pinned pool may use at least 1/8 of all memory
# The pinned pool may use 1/2 of the memory that is free beside the trainers; the rest is for the database.
_POOL_SHARE = 2


def with_pinned_pool(
    settings: Settings,
    configured: frozenset[str],
    measure: Callable[[], Memory] = memory,
    free: Callable[[], int] = free_memory_bytes,
) -> Settings:
    """Return the settings of a GPU with a host pool for swapped-out data, sized by this machine by default.

    Pinned memory is not available to anything else, so the pool may take half of the memory that is free now, after
    subtracting the memory of the trainers that may start. The size is a limit: a job pins only what its plan moves,
    when it moves it.
    """
    limit = measure().divided(settings.devices)
    if "host_pool_bytes" in configured:
        return with_host_pool(settings, limit)
    free_bytes = min(free() // max(1, settings.devices), limit.size_bytes)
    beside_bytes = free_bytes - settings.max_jobs * _TRAINER_BYTES
    least_bytes = min(limit.size_bytes // _LEAST_SHARE, free_bytes // _POOL_SHARE)  # small machines run few jobs
    pool_bytes = max(MIB, least_bytes, beside_bytes // _POOL_SHARE)
    log.info("jobs may pin %d bytes of this machine's memory (%s)", pool_bytes, variable("host_pool_bytes"))
    return replace(settings, host_pool_bytes=pool_bytes)


def with_host_pool(settings: Settings, most: Memory, taken_bytes: int = 0) -> Settings:
    """Return the settings with a host pool that fits beside the memory that is already taken.

    The limit is the memory of the machine and its control group. RLIMIT_MEMLOCK does not apply: the emulated pool is
    not locked, and a GPU's driver pins pages in the kernel without charging them to this limit (os_lock_user_pages in
    os-mlock.c of NVIDIA's open-gpu-kernel-modules).
    """
    left_bytes = max(MIB, most.size_bytes - taken_bytes)
    if settings.host_pool_bytes <= left_bytes:
        return settings
    log.warning(
        "host_pool_bytes (%s) is %d, more than the %d bytes that %s has beside the device's: only these are "
        "used. Set a lower value, or add memory.",
        variable("host_pool_bytes"),
        settings.host_pool_bytes,
        left_bytes,
        most.whose,
    )
    return replace(settings, host_pool_bytes=left_bytes)


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
