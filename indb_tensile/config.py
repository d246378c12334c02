"""The settings of controllers, trainers and services: their names, defaults and ranges.

`settings_loader.py` reads their values from the environment and a file. This module needs only the standard library,
and reads no file, so that every layer may import it.

The default sizes are those of the emulated device: an RTX A6000, slowed down to the speed at which this machine
computes a training step (controller/link_rates.py). Its 2 GiB hold any one of the quickstart's jobs without a plan,
but not three. Other devices take their sizes from the GPU or the machine (device/backend.py, device/hardware.py).
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from mmap import PAGESIZE

from indb_tensile.errors import RequestError

PREFIX = "TENSILE_"
CONFIG_VARIABLE = "TENSILE_CONFIG"

# Variables with the prefix that are no settings. tests/test_settings_loader.py searches the sources for others.
OTHER_VARIABLES = frozenset(
    {
        CONFIG_VARIABLE,
        "TENSILE_PYTHON",  # of the scripts that set up a checkout
        "TENSILE_TORCH",
        "TENSILE_NATIVE_TESTS",  # of the tests
        "TENSILE_PYTHON_MODULE",
        "TENSILE_SANITIZE",
        "TENSILE_SERVICE_PEER_UID",  # of a service (worker/serving/settings.py)
        "TENSILE_SERVICE_RESIDENT_BYTES",
        "TENSILE_SERVICE_READ_ONLY",  # from `tensile service --read-only`
        "TENSILE_SERVICE_PRIMARY_DSN",  # and its option --primary-dsn
        "TENSILE_WORKER_ID",  # from a controller to the processes that it starts, as are all below
        "TENSILE_ANALYST_FD",
        "TENSILE_ANSWERING_FD",
        "TENSILE_DEVICE_FD",
        "TENSILE_LIFE_FD",
        "TENSILE_LINK_FD",
        "TENSILE_REGIONS_FD",
    }
)
# Prefixes of variables that belong to benchmarks and tests.
OTHER_PREFIXES = ("TENSILE_BENCH_", "TENSILE_GPU_", "TENSILE_TEST_")

MIB = 1024 * 1024
GIB = 1024 * MIB

# When a waiting job is let in beside those that run (scheduler/admission/pool.py, Sharing).
SHARING = ("completion", "any_price")
POLICIES = ("tensile+", "tensile", "liveness", "vanilla")
CHECKPOINT_STORES = ("auto", "local", "catalog")
RANK_NETWORKS = ("host", "nccl")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one controller, its trainers and its service. Raises RequestError for a value out of range.

    Device. `device` is `auto` (a usable GPU if there is one, else `cpu`), `cpu` (this machine's memory and processor,
    at full speed), `cuda` or `cuda:1` (that GPU and no other), or `emulated` (an imitation of a GPU, for tests;
    `emulated:1` names one of several). `devices` controllers share this machine, each with a device of its own, and
    each takes that part of the machine's memory and processors; `tensile up` starts one for each, and with 0 one for
    each usable GPU.
    `budget_bytes` is the part of the device's `capacity_bytes` that jobs may use together. On `cpu`, tensors are
    swapped out to a file in `swap_directory`, which must be on a disk; empty means `swap` in `state_dir`. The file
    grows to at most `host_pool_bytes`. The emulated device imitates the GPU that `emulate` names
    (scheduler/timing/machines.py). A link rate of 0 is that GPU's rate, slowed down by the same factor as its
    computation. `torch_threads` is the number of threads of one job; 0 means half of the processors on `cpu` and one
    elsewhere. The number of threads changes the last bits of a job's results, so a job keeps the number of its first
    start. With `cuda_graphs`, a GPU runs an iteration as one recorded graph if its plan allows that; the results are
    the same without. With `mps`, kernels of several jobs run side by side on a GPU; NVIDIA's daemon does this, and
    `tensile up --mps` starts it.

    Planning. `drift_threshold` bounds TENSILE's |s' - s| / s. When a controller first uses a kind of device, it
    spends `survey_s` of the device's time on measuring operators; 0 trains no latency predictor, and
    measures no contention. Contention of processors is measured while other programs keep at most
    `survey_busy_cores` busy, or a twentieth of all cores.

    Judging. With `baseline`, gradient boosting is fitted to the rows of a published version while a processor is
    idle, and its metrics are stored beside those of the version.

    Sharing. With `sharing = "completion"` a waiting job starts beside running jobs only if all jobs then end earlier,
    and if no job becomes slower than `max_slowdown` times alone with all the memory. With `any_price` it starts as
    soon as any plan fits, however slow the jobs become; this is for comparison. With `completion`, running jobs leave
    the device for waiting jobs that come before them (shifts), if `parked_jobs` allows it. A job that has waited for
    its first step for `first_step_s` has a turn before others go on. With `phases`, jobs of one
    owner that go on side by side for at least `phases_s` may share memory in turns within their iterations, if
    `phases_gain` times as much work is foretold; not in strict mode.

    Failures. A worker that has sent no heartbeat for `lease_s` stops its own trainers, and other workers take over
    its jobs. A trainer hangs if it has sent no message for `answer_s` since it was started or was sent a plan. While
    it trains, it hangs if it has reported no progress for `answer_s`, or for 50 times its longest iteration if that
    is longer. A trainer that hangs is killed, and its job resumes from its last checkpoint. A starting controller
    waits up to `start_patience_s` for a database that does not answer, and longer for a database that is starting up.
    A job fails if interruptions that are not its own fault have cost it more than `interrupted_s` since its last
    checkpoint; 0 sets no limit.

    Several devices. A rank of a job that several devices train together listens on `rank_address`: loopback if all
    devices are of this machine, else this machine's address in a private network. A rank is lost if it has not
    answered another one for `rank_timeout_s`. With `rank_network = "host"` ranks exchange gradients in host memory,
    with `nccl` between GPUs, which must be those of all ranks.

    Predictions. The service puts its socket into `service_directory`, for a database server of this machine. On
    `service_address`, an IP address and a port, it answers database servers of other machines by TLS. The directory
    `service_tls_directory` has its certificate and key (`tls.crt`, `tls.key`) and the authority of its clients
    (`ca.crt`). A client's certificate must name `service_client_name`. The service's own certificate must be valid
    for `service_host_name`; empty means the address. With neither a directory nor an address no service is started.

    Files. `checkpoint_store` says where checkpoints are kept: `local`, in files below `state_dir`, which only this
    host can read; `catalog`, in the database; `auto`, in files, and also in the catalog before a job moves to another
    device, and every `checkpoint_catalog_s` while a controller of another host is alive or the files cannot be
    written. Checkpoints take at most a tenth of the training time, however short `checkpoint_s` is. The logs of
    `tensile up` in `state_dir` are rotated at `log_bytes`; `log_files` older ones are kept.
    """

    dsn: str = ""  # empty: libpq's own defaults and PG* variables
    reader_dsn: str = ""  # of the role that reads users' tables; empty: dsn as tensile_reader, without its password
    read_limit_bytes: int = 0  # memory of a trainer for the rows of a table; 0: half of the machine's or container's
    rows_directory: str = ""  # for the rows of tables that exceed that memory; empty: rows in state_dir
    device: str = "auto"
    devices: int = 1
    capacity_bytes: int = 2 * GIB  # unset, these three come from the device, except for the emulated one
    budget_bytes: int = 2 * GIB
    region_bytes: int = MIB  # a multiple of a page of memory
    share_memory: bool = True  # off: each trainer allocates its grant as memory of its own; for debugging
    memory_directory: str = ""  # for the memory of the cpu or emulated device, such as /dev/shm; empty: anonymous
    swap_directory: str = ""
    emulate: str = "a6000"
    link_out_bytes_per_s: int = 0
    link_in_bytes_per_s: int = 0
    host_pool_bytes: int = 8 * GIB
    lease_s: float = 15.0  # several heartbeats, so that one slow statement does not lose the lease
    beat_s: float = 1.0  # a cancellation takes effect within one heartbeat
    poll_s: float = 1.0  # the controller is correct without notifications, because it polls
    spare_trainers: int = 2  # started in advance, so that no claimed job waits for a process
    max_jobs: int = 8
    entering_jobs: int = 0  # of one owner; 0: as many as this machine has cores, at least 2
    parked_jobs: int = 4  # each keeps a process, and on a GPU its context
    policy: str = "tensile+"
    drift_threshold: float = 0.2
    sharing: str = "completion"
    max_slowdown: float = 3.0
    first_step_s: float = 300.0  # a person who waits for the first loss of a training looks again after minutes
    phases: bool = False
    phases_gain: float = 1.05  # forecasts differ from measured times by a few per cent
    phases_s: float = 120.0  # planning a round takes seconds of a processor, and joining it an iteration of each job
    checkpoint_s: float = 30.0  # the least time between two checkpoints of a job
    checkpoint_store: str = "auto"
    checkpoint_catalog_s: float = 600.0  # under auto: 148 MB every 10 min are 21 GB of WAL a day
    stop_grace_s: float = 5.0  # between SIGTERM and SIGKILL
    answer_s: float = 600.0  # longer than an iteration, and than the start of a trainer, on any machine
    start_patience_s: float = 60.0  # longer than the restart of a server
    interrupted_s: float = 86_400.0  # a day: longer than any outage that an administrator works on
    rank_address: str = "127.0.0.1"
    rank_network: str = "host"  # nccl has not run on GPUs yet
    rank_timeout_s: float = 300.0  # longer than one rank saves a checkpoint, while the others wait for it
    service_directory: str = ""
    service_address: str = ""
    service_tls_directory: str = ""
    service_host_name: str = ""
    service_client_name: str = "tensile-database"
    state_dir: str = ".tensile"
    # For debugging, on the emulated device: a process that accesses swapped-out memory ends with a message.
    strict: bool = False
    cuda_graphs: bool = True
    mps: bool = False  # needs a GPU and a running MPS daemon
    baseline: bool = True
    survey_s: float = 28.0  # measures some 4,000 operators on one core, within a minute
    survey_busy_cores: float = 0.25  # a database and controllers without work keep less than a tenth of a core busy
    log_level: str = "info"
    log_bytes: int = 10 * MIB
    log_files: int = 5
    torch_threads: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                unit = " seconds" if _KINDS[name] == "a duration" else ""
                raise _fault(name, value, f"{_KINDS[name]} from {low} to {high}{unit}")
        self._check_names()
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise _fault(name, getattr(self, name), f"one of {', '.join(choices)}")
        if self.region_bytes % PAGESIZE:
            raise _fault("region_bytes", self.region_bytes, f"a multiple of a page of {PAGESIZE} bytes")
        if self.budget_bytes > self.capacity_bytes:
            raise _fault("budget_bytes", self.budget_bytes, f"at most the capacity of {self.capacity_bytes} bytes")
        if self.budget_bytes < self.region_bytes:
            raise _fault("budget_bytes", self.budget_bytes, f"at least one region of {self.region_bytes} bytes")
        if self.lease_s < 3 * self.beat_s:
            raise _fault("lease_s", self.lease_s, f"at least three beats of {self.beat_s} s")

    def _check_names(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise _fault(
                "device", self.device, "auto, cpu, emulated, cuda, or cuda: and a GPU's number, such as cuda:0"
            )
        if not is_private_address(self.rank_address):
            expected = "a loopback address, or this machine's address in a private network, such as 10.0.0.7"
            raise _fault("rank_address", self.rank_address, expected)
        if self.service_address:
            split_address(self.service_address)
            if not self.service_tls_directory.startswith("/"):
                expected = f"with service_address {self.service_address}, the absolute path of the directory with "
                raise _fault(
                    "service_tls_directory", self.service_tls_directory, expected + "tls.crt, tls.key and ca.crt"
                )
            if self.service_host_name and not _HOST_NAME.fullmatch(self.service_host_name):
                raise _fault("service_host_name", self.service_host_name, "a name such as gpu1.example.org")
            if not self.service_client_name:
                raise _fault("service_client_name", self.service_client_name, "a name in the certificates of clients")

    @property
    def has_service(self) -> bool:
        """Whether a service is started."""
        return bool(self.service_directory or self.service_address)

    @property
    def uses_nccl(self) -> bool:
        """Whether the devices of a job exchange gradients by NCCL."""
        return self.rank_network == "nccl"

    @property
    def threads(self) -> int:
        """The number of threads of one job. A controller has replaced 0 by the machine's number; otherwise 0 is 1."""
        return self.torch_threads or 1

    def environment(self) -> dict[str, str]:
        """Return the environment variables that pass these settings to a child process."""
        return {variable(f.name): str(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritedDescriptors:
    """The open file descriptors that a trainer inherits from its controller.

    The trainer receives the memory regions of a GPU through `regions_fd` (device/cuda.py).
    """

    link_fd: int
    device_fd: int
    regions_fd: int | None = None

    @property
    def descriptors(self) -> dict[str, int]:
        """All descriptors, by the environment variables that pass their numbers to the trainer."""
        by_variable = {"TENSILE_LINK_FD": self.link_fd, "TENSILE_DEVICE_FD": self.device_fd}
        return by_variable if self.regions_fd is None else by_variable | {"TENSILE_REGIONS_FD": self.regions_fd}

    def environment(self) -> dict[str, str]:
        """Return the environment variables that pass the descriptors to a trainer."""
        return {name: str(descriptor) for name, descriptor in self.descriptors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRule:
    """The rule that a setting's value must satisfy: its kind in words, its range (inclusive) or its choices.

    `default` is the value of a setting that is not set.
    """

    name: str
    kind: str
    default: object
    range: tuple[float, float] | None
    choices: tuple[str, ...] = ()


def is_private_address(text: str) -> bool:
    """Return whether the text is an address on which ranks may listen: their connections are not encrypted."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_private and not address.is_unspecified


def split_address(text: str) -> tuple[str, int]:
    """Return the IP address and the port of a service_address, as in 10.0.0.7:7443 or [fd00::7]:7443."""
    host, colon, port_text = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
        port = int(port_text) if port_text.isascii() and port_text.isdecimal() else -1
    except ValueError:
        raise _fault("service_address", text, _ADDRESS) from None
    scoped = isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None
    if (
        not colon
        or bracketed != (address.version == 6)
        or not 0 <= port <= 65535
        or address.is_unspecified
        or address.is_multicast
        or scoped
    ):
        raise _fault("service_address", text, _ADDRESS)
    return str(address), port


_ADDRESS = (
    "the IP address by which the database's host reaches this machine, with a port (0 takes a free one), such as "
    "10.0.0.7:7443 or [fd00::7]:7443,"
)


def setting_rules() -> tuple[SettingRule, ...]:
    """Return the rule of each setting, in the order of `Settings`."""
    return tuple(
        SettingRule(
            name=f.name,
            kind=_KINDS[f.name],
            default=f.default,
            range=_RANGES.get(f.name),
            choices=_CHOICES.get(f.name, ()),
        )
        for f in fields(Settings)
    )


def inherited_descriptors(environ: Mapping[str, str]) -> InheritedDescriptors:
    """Return the descriptors that this trainer inherits. Raises RequestError if no controller started the process."""
    return InheritedDescriptors(
        link_fd=_descriptor(environ, "TENSILE_LINK_FD"),
        device_fd=_descriptor(environ, "TENSILE_DEVICE_FD"),
        regions_fd=_descriptor(environ, "TENSILE_REGIONS_FD") if environ.get("TENSILE_REGIONS_FD") else None,
    )


def variable(name: str) -> str:
    """Return the name of a setting's environment variable."""
    return PREFIX + name.upper()


_KINDS: dict[str, str] = {
    "dsn": "a libpq connection string",
    "reader_dsn": "a libpq connection string",
    "read_limit_bytes": "a size",
    "rows_directory": "a directory",
    "device": "a kind of device",
    "devices": "a whole number",
    "capacity_bytes": "a size",
    "budget_bytes": "a size",
    "region_bytes": "a size",
    "share_memory": "true or false",
    "memory_directory": "a directory",
    "swap_directory": "a directory",
    "emulate": "the name of a GPU",
    "link_out_bytes_per_s": "a size",
    "link_in_bytes_per_s": "a size",
    "host_pool_bytes": "a size",
    "lease_s": "a duration",
    "beat_s": "a duration",
    "poll_s": "a duration",
    "spare_trainers": "a whole number",
    "max_jobs": "a whole number",
    "entering_jobs": "a whole number",
    "parked_jobs": "a whole number",
    "policy": "a policy",
    "drift_threshold": "a number",
    "sharing": "a way of sharing",
    "max_slowdown": "a number",
    "first_step_s": "a duration",
    "phases": "true or false",
    "phases_gain": "a number",
    "phases_s": "a duration",
    "checkpoint_s": "a duration",
    "checkpoint_store": "a store",
    "checkpoint_catalog_s": "a duration",
    "stop_grace_s": "a duration",
    "answer_s": "a duration",
    "start_patience_s": "a duration",
    "interrupted_s": "a duration",
    "rank_address": "an address",
    "rank_network": "a network",
    "rank_timeout_s": "a duration",
    "service_directory": "a directory",
    "service_address": "an address with a port",
    "service_tls_directory": "a directory",
    "service_host_name": "a name",
    "service_client_name": "a name",
    "state_dir": "a directory",
    "strict": "true or false",
    "cuda_graphs": "true or false",
    "mps": "true or false",
    "baseline": "true or false",
    "survey_s": "a duration",
    "survey_busy_cores": "a number",
    "log_level": "a level",
    "log_bytes": "a size",
    "log_files": "a whole number",
    "torch_threads": "a whole number",
}

_RANGES: dict[str, tuple[float, float]] = {
    "read_limit_bytes": (0, 16 * 1024 * GIB),
    "devices": (0, 64),
    "capacity_bytes": (MIB, 1024 * GIB),
    "budget_bytes": (1, 1024 * GIB),
    "region_bytes": (4096, GIB),
    "link_out_bytes_per_s": (0, 10**13),
    "link_in_bytes_per_s": (0, 10**13),
    "host_pool_bytes": (MIB, 16 * 1024 * GIB),
    "lease_s": (0.3, 3600),
    "beat_s": (0.05, 600),
    "poll_s": (0.05, 600),
    "spare_trainers": (1, 64),
    "max_jobs": (1, 64),  # the ledger of the device's memory has 64 slots
    "entering_jobs": (0, 64),
    "parked_jobs": (0, 64),
    "drift_threshold": (0.01, 100),
    "max_slowdown": (1, 1000),
    "first_step_s": (1, 86400),
    "phases_s": (0, 31_536_000),
    "checkpoint_s": (0, 86400),
    "checkpoint_catalog_s": (0, 86400),
    "log_bytes": (4096, 1024 * GIB),
    "log_files": (1, 100),
    "stop_grace_s": (0, 600),
    "answer_s": (1, 86400),
    "start_patience_s": (0, 86400),
    "rank_timeout_s": (1, 86400),
    "interrupted_s": (0, 365 * 86400),
    "survey_s": (0, 600),
    "survey_busy_cores": (0, 1024),
    "torch_threads": (0, 1024),
}

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?")  # or an IP address
_DEVICE = re.compile(r"auto|cpu|(emulated|cuda)(:\d{1,2})?")

_CHOICES = {
    "policy": POLICIES,
    "sharing": SHARING,
    "checkpoint_store": CHECKPOINT_STORES,
    "rank_network": RANK_NETWORKS,
    "log_level": LOG_LEVELS,
}


def _descriptor(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdecimal():
        raise RequestError(
            f"{name} is {text!r}: the number of an open file descriptor is needed",
            hint="A trainer is started by a controller: run tensile controller instead.",
        )
    return int(text)


def _fault(name: str, value: object, needed: str) -> RequestError:
    return RequestError(f"{name} ({variable(name)}) is {value!r}: {needed} is needed")
