"""The links of a device: measured on a GPU; of an emulated one as set, else those of its GPU, slowed down.

How much slower this machine is than the GPU is measured by one reference step, when a kind of device is met for the
first time, and kept in the catalog: controllers on equal machines then have equal devices, whose plans and times can
be compared, and one that starts again, perhaps beside other work, has the device that it had.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from subprocess import DEVNULL, PIPE, run

from indb_tensile.config import Settings, variable
from indb_tensile.errors import DeviceError, MissingError
from indb_tensile.scheduler.link import Copying, Link, Way
from indb_tensile.scheduler.machines import MACHINES, Pace, slowed


def emulated_link(settings: Settings, known: Callable[[str], Pace | None], measure: Callable[[], None]) -> Link:
    """The rates to emulate; `measure` makes a pace known that is not.

    Raises MissingError for a GPU that is not known, DeviceError where nothing could be measured.
    """
    if settings.emulate not in MACHINES:
        raise MissingError(
            f"emulate ({variable('emulate')}) is {settings.emulate!r}: the name of a known GPU is needed",
            hint=f"Known are {', '.join(MACHINES)}.",
        )
    out_bytes_per_s, in_bytes_per_s = settings.link_out_bytes_per_s, settings.link_in_bytes_per_s
    if not (out_bytes_per_s and in_bytes_per_s):
        link = slowed(MACHINES[settings.emulate], _pace(settings.emulate, known, measure))
        out_bytes_per_s = out_bytes_per_s or link.out_bytes_per_s
        in_bytes_per_s = in_bytes_per_s or link.in_bytes_per_s
    return Link(out_bytes_per_s=out_bytes_per_s, in_bytes_per_s=in_bytes_per_s)


def measured_copies(device: str, command: Sequence[str], environment: Mapping[str, str]) -> tuple[Copying, ...]:
    """A GPU's copies as a process of its own measures them. Raises DeviceError."""
    done = run(tuple(command), env=dict(environment), stdin=DEVNULL, stdout=PIPE, check=False)
    if done.returncode:
        raise DeviceError(
            f"the link of {device} could not be measured: its process ended with code {done.returncode}",
            hint="Its own line in this log says why.",
        )
    return tuple(Copying(**(row | {"way": Way(row["way"])})) for row in json.loads(done.stdout))


def measure_apart(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Measure in a process of its own: it imports torch, which no controller does. Raises DeviceError."""
    code = run(tuple(command), env=dict(environment), stdin=DEVNULL, check=False).returncode
    if code:
        raise _unmeasured(f"the process that measures it ended with code {code}")


def _pace(machine: str, known: Callable[[str], Pace | None], measure: Callable[[], None]) -> Pace:
    pace = known(machine)
    if pace is None:
        measure()
        pace = known(machine)
    if pace is None:
        raise _unmeasured("the process that measures it has left nothing in the catalog")
    return pace


def _unmeasured(detail: str) -> DeviceError:
    names = " and ".join(variable(f"link_{way}_bytes_per_s") for way in ("out", "in"))
    return DeviceError(
        "it could not be measured how much slower this machine is than the GPU that it stands for",
        detail=detail,
        hint=f"Its own line in this log says why; with {names} set, nothing is measured.",
    )
