"""What kind of device this is, under which the catalog remembers operators, a first guess of its speed, and its
memory.

The memory of an emulated device and of the processor's own is the machine's, set aside when a region is first used:
settings that name more than there is would be believed until a job needs it.
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

_MOST_REGIONS = 8192  # their words are read one by one whenever a process looks for new ones: 10 us

# One core of a server CPU: what its vector units and its share of the memory give a float32 kernel. It only has to
# rank operators until they are measured, which a calibration does before anything is planned.
PROCESSOR_SPEED = DeviceSpeed(flops_per_s=100_000_000_000, bytes_per_s=10_000_000_000, launch_ns=5_000)


def emulated_kind() -> str:
    """`emulated:` and the processor's name: operators take as long as the processor makes them."""
    return f"emulated:{processor()}"


def cpu_kind(threads: int) -> str:
    """`cpu:`, the processor's name and the threads that an operator runs on: what its time depends on."""
    return f"cpu:{processor()}, {threads} thread{'s' * (threads != 1)}"


def cores() -> int:
    """How many processors this process may use: those it is bound to, or as much time as its control group has."""
    bound = len(os.sched_getaffinity(0))
    quota = cgroup.processors()
    return bound if quota is None else max(1, min(bound, int(quota)))


def half_of_cores() -> int:
    """The threads of a job where nothing is set: the others are for the database, and for other jobs."""
    return max(1, cores() // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What all processes here can have together, and whose limit that is."""

    size_bytes: int
    whose: str


def memory() -> Memory:
    """The machine's memory, or less where this process's control group has a limit."""
    machine = Memory(size_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), whose="this machine")
    limit = memory_limit()
    if limit is None or limit.size_bytes >= machine.size_bytes:
        return machine
    return Memory(size_bytes=limit.size_bytes, whose=f"this container or control group ({limit.path})")


def memory_with_swap_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """The most that all processes here can ever have: a control group's limit may leave out swap space."""
    return memory().size_bytes + _meminfo_bytes(meminfo).get("SwapTotal", 0)


def free_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """What a process here could take now, swap space included."""
    told, limit = _meminfo_bytes(meminfo), memory_limit()
    swap_bytes = told.get("SwapFree", 0)
    machine_bytes = told.get("MemAvailable", memory().size_bytes)
    group_bytes = machine_bytes if limit is None else cgroup.free_bytes(limit)
    return min(machine_bytes, group_bytes) + swap_bytes


def swap_directory(settings: Settings) -> str:
    """Where what is swapped out is kept: on the disk of `state_dir` where nothing else is set."""
    return settings.swap_directory or str(Path(settings.state_dir) / "swap")


def disk_free_bytes(directory: str) -> int:
    """What the disk of a directory, which need not be there yet, has free; 0 where nobody says."""
    place = Path(directory).absolute()
    for one in (place, *place.parents):
        try:
            found = os.statvfs(one)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return 0


def is_in_memory(directory: str) -> bool:
    """Whether a directory is of a file system that is itself in memory: swapping to it saves none."""
    place, found = Path(directory).absolute(), ("", "")
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    for line in lines:
        _, mounted, kind, *_ = line.split(" ")
        root = mounted.replace("\\040", " ")
        if place.is_relative_to(root) and len(root) >= len(found[0]):
            found = (root, kind)
    return found[1] in ("tmpfs", "ramfs")


def _meminfo_bytes(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in lines)
    return {name: int(words[0]) * 1024 for name, text in pairs if (words := text.split()) and words[-1] == "kB"}


def room_bytes(settings: Settings) -> int:
    """What an emulated device's memory can come from now: of all there is what its file system has free."""
    if not settings.memory_directory:
        return memory().size_bytes
    try:
        found = os.statvfs(settings.memory_directory)
    except OSError:
        return 0
    return min(found.f_bavail * found.f_frsize, memory().size_bytes)


def trim_heap() -> None:
    """Give memory that was freed back to the machine: the C library keeps some of it for what may be asked next."""
    with contextlib.suppress(AttributeError):  # glibc's own
        ctypes.CDLL(None).malloc_trim(0)


def directory_fault(settings: Settings) -> str | None:
    """Why an emulated device's memory cannot be made in the directory that is set; None where it can."""
    if not settings.memory_directory:
        return None
    try:
        os.close(os.open(settings.memory_directory, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600))
    except OSError as error:
        return error.strerror or str(error)
    return None


def address_fault(settings: Settings, limit_bytes: int | None = None) -> str | None:
    """Why a trainer could not map an emulated device and the host pool; None where it can.

    `limit_bytes` is what a process may map; without it this one's own.
    """
    most_bytes = resource.getrlimit(resource.RLIMIT_AS)[0] if limit_bytes is None else limit_bytes
    mapped_bytes = settings.capacity_bytes + settings.host_pool_bytes
    if most_bytes == resource.RLIM_INFINITY or mapped_bytes <= most_bytes:
        return None
    return (
        f"a process may map {most_bytes} bytes, and a trainer maps {mapped_bytes}: {variable('capacity_bytes')} and "
        f"{variable('host_pool_bytes')}"
    )


_SWAPPED_SHARE = 2  # of what the disk has free


def share_of_machine(
    settings: Settings,
    given: frozenset[str],
    measure: Callable[[], Memory] = memory,
    free: Callable[[str], int] = disk_free_bytes,
) -> Settings:
    """The settings of the processor's own device: what is not `given` comes from what there is.

    Half of the memory is the device's, and the rest is for the database, the tables that trainers read, and the
    trainers themselves. Half of what the disk has free may be swapped to. Raises RequestError for a budget beyond
    what there is.
    """
    most = measure()
    region_bytes, capacity_bytes = settings.region_bytes, settings.capacity_bytes
    if "capacity_bytes" not in given:
        capacity_bytes = max(MIB, most.size_bytes // 2, settings.budget_bytes if "budget_bytes" in given else 0)
    if "region_bytes" not in given:
        while capacity_bytes // region_bytes > _MOST_REGIONS:
            region_bytes *= 2
    capacity_bytes = max(region_bytes, capacity_bytes - capacity_bytes % region_bytes)
    budget_bytes = settings.budget_bytes if "budget_bytes" in given else capacity_bytes
    if budget_bytes > most.size_bytes:
        raise RequestError(
            f"budget_bytes ({variable('budget_bytes')}) is {budget_bytes}: at most {most.size_bytes} is needed, the "
            f"memory of {most.whose}, of which this device takes its own",
            hint="Set a budget that leaves memory for the database and the trainers, or give it more memory.",
        )
    pool_bytes = settings.host_pool_bytes
    if "host_pool_bytes" not in given:
        pool_bytes = max(MIB, min(pool_bytes, free(swap_directory(settings)) // _SWAPPED_SHARE))
    return replace(
        settings,
        region_bytes=region_bytes,
        capacity_bytes=capacity_bytes,
        budget_bytes=min(budget_bytes, capacity_bytes),
        host_pool_bytes=pool_bytes,
        swap_directory=swap_directory(settings),
        torch_threads=settings.torch_threads or half_of_cores(),
    )


def within_machine(settings: Settings, measure: Callable[[], Memory] = memory) -> Settings:
    """The settings of an emulated device with as much host memory as there can be beside its own.

    Raises RequestError for a budget beyond what there is.
    """
    most = measure()
    if settings.budget_bytes > most.size_bytes:
        raise RequestError(
            f"budget_bytes ({variable('budget_bytes')}) is {settings.budget_bytes}: at most {most.size_bytes} is"
            f" needed, the memory of {most.whose}, of which an emulated device takes its own",
            hint="Set a budget that leaves memory for the database and the trainers, or give it more memory.",
        )
    left_bytes = room_bytes(settings)
    if settings.memory_directory and 0 < left_bytes < settings.budget_bytes:  # 0: there can be no device at all
        log.warning(
            "memory_directory %s has %d bytes free, less than the budget of %d: jobs go back to the queue when it is "
            "full. Free some, enlarge it (mount -o remount,size=…), or lower budget_bytes.",
            settings.memory_directory,
            left_bytes,
            settings.budget_bytes,
        )
    return with_host_pool(settings, most, settings.budget_bytes)


_TRAINER_BYTES = GIB  # of a trainer's own: Python, torch, what it has read
_LEAST_SHARE = 8  # of all memory
_POOL_SHARE = 2  # of what is free beside the trainers; the other half is the database's and its tables'


def with_pinned_pool(
    settings: Settings,
    given: frozenset[str],
    measure: Callable[[], Memory] = memory,
    free: Callable[[], int] = free_memory_bytes,
) -> Settings:
    """The settings of a GPU with a host pool for what is away from it, sized by this machine unless it is `given`.

    What is pinned is the machine's no more, so the pool may take half of what is free now beside the trainers that
    may come. It is a limit: a job pins what its plan moves, and no byte ahead of that.
    """
    most = measure()
    if "host_pool_bytes" in given:
        return with_host_pool(settings, most)
    free_bytes = min(free(), most.size_bytes)
    beside_bytes = free_bytes - settings.max_jobs * _TRAINER_BYTES
    least_bytes = min(most.size_bytes // _LEAST_SHARE, free_bytes // _POOL_SHARE)  # few jobs run on a small machine
    pool_bytes = max(MIB, least_bytes, beside_bytes // _POOL_SHARE)
    log.info("jobs may pin %d bytes of this machine's memory (%s)", pool_bytes, variable("host_pool_bytes"))
    return replace(settings, host_pool_bytes=pool_bytes)


def with_host_pool(settings: Settings, most: Memory, taken_bytes: int = 0) -> Settings:
    """The settings with a host pool that fits beside what is taken of the same memory already.

    It is the machine's and its control group's memory that bounds it. RLIMIT_MEMLOCK does not: the emulated pool is
    not locked, and a GPU's driver pins pages in the kernel without charging them to it (os_lock_user_pages in
    os-mlock.c of NVIDIA's open-gpu-kernel-modules).
    """
    left_bytes = max(MIB, most.size_bytes - taken_bytes)
    if settings.host_pool_bytes <= left_bytes:
        return settings
    log.warning(
        "host_pool_bytes (%s) is %d, more than the %d bytes that %s has beside the device's: so much is used and no "
        "more. Set it lower, or give it more memory.",
        variable("host_pool_bytes"),
        settings.host_pool_bytes,
        left_bytes,
        most.whose,
    )
    return replace(settings, host_pool_bytes=left_bytes)


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
