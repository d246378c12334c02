"""The copy rates of a device's link: measured for a GPU, set or derived for an emulated device.

The rates of an emulated device are those in the settings, or else the rates of the emulated GPU, divided by how much
slower this machine is. That ratio is measured by one reference step when a kind of device is first used, and is
stored in the catalog. So controllers on equal machines emulate equal devices, whose plans and times can be compared,
and a controller that restarts, perhaps beside other work, emulates the same device as before.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from subprocess import DEVNULL, PIPE, run

from indb_tensile.config import Settings, variable
from indb_tensile.errors import DeviceError, MissingError
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link
from indb_tensile.scheduler.timing.machines import MACHINES, StepTimes, slowed


def emulated_link(settings: Settings, known: Callable[[str], StepTimes | None], measure: Callable[[], None]) -> Link:
    """Return the copy rates to emulate.

    `known` looks up the measured pace of a machine; `measure` measures and stores a pace that is unknown. Raises
    MissingError for an unknown GPU, DeviceError if the pace could not be measured.
    """
    if settings.emulate not in MACHINES:
        raise MissingError(
            f"emulate ({variable('emulate')}) is {settings.emulate!r}: the name of a known GPU is needed",
            hint=f"Known GPUs are {', '.join(MACHINES)}.",
        )
    out_bytes_per_s, in_bytes_per_s = settings.link_out_bytes_per_s, settings.link_in_bytes_per_s
    if not (out_bytes_per_s and in_bytes_per_s):
        link = slowed(MACHINES[settings.emulate], _pace(settings.emulate, known, measure))
        out_bytes_per_s = out_bytes_per_s or link.out_bytes_per_s
        in_bytes_per_s = in_bytes_per_s or link.in_bytes_per_s
    return Link(out_bytes_per_s=out_bytes_per_s, in_bytes_per_s=in_bytes_per_s)


def measured_copies(
    device: str, command: Sequence[str], environment: Mapping[str, str]
) -> tuple[CopyMeasurement, ...]:
    """Measure a GPU's copies in a separate process. Raises DeviceError."""
    process = run(tuple(command), env=dict(environment), stdin=DEVNULL, stdout=PIPE, check=False)
    if process.returncode:
        raise DeviceError(
            f"the link of {device} could not be measured: its process ended with code {process.returncode}",
            hint="See the message of that process in this log.",
        )
    return tuple(CopyMeasurement(**(row | {"way": CopyDirection(row["way"])})) for row in json.loads(process.stdout))


def measure_apart(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Measure in a separate process, because that imports torch, which no controller does. Raises DeviceError."""
    code = measuring_exit_code(command, environment)
    if code:
        raise _not_measured(f"the measuring process ended with code {code}")


def measuring_exit_code(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a measuring process, which imports torch and writes its own messages. Return its exit code."""
    return run(tuple(command), env=dict(environment), stdin=DEVNULL, check=False).returncode


def _pace(machine: str, known: Callable[[str], StepTimes | None], measure: Callable[[], None]) -> StepTimes:
    pace = known(machine)
    if pace is None:
        measure()
        pace = known(machine)
    if pace is None:
        raise _not_measured("the measuring process has stored nothing in the catalog")
    return pace


def _not_measured(detail: str) -> DeviceError:
    names = " and ".join(variable(f"link_{way}_bytes_per_s") for way in ("out", "in"))
    return DeviceError(
        "the speed of this machine relative to the emulated GPU could not be measured",
        detail=detail,
        hint=f"See the message of that process in this log. If {names} are set, nothing is measured.",
    )
