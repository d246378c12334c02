"""Asks the driver for this machine's GPUs, in a process of its own, because a probe initializes the driver."""

import json
import subprocess
import sys
from functools import cache

from indb_tensile.device.backend import Chosen, choose, torch_architectures, torch_cuda
from indb_tensile.device.cuda import Absence, Gpu, Gpus, NoGpu


@cache
def probed_gpus() -> Gpus | NoGpu:
    """Return the GPUs of this machine, or why there is none. Asked once in each process."""
    source = "import json, dataclasses as d, indb_tensile.device.cuda as c; print(json.dumps(d.asdict(c.probe())))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = f"asking the driver ended with {done.returncode}"
        return NoGpu(why=Absence.BROKEN_DRIVER, reason=reason, hint="nvidia-smi")
    fields = json.loads(done.stdout.splitlines()[-1])
    if "why" in fields:
        return NoGpu(**fields | {"why": Absence(fields["why"])})
    gpus = tuple(Gpu(**each | {"capability": tuple(each["capability"])}) for each in fields["devices"])
    return Gpus(driver_version=fields["driver_version"], devices=gpus)


def chosen_device(setting: str) -> Chosen:
    """Return the device that a controller with this setting `device` would choose. Raises DeviceError."""
    return choose(setting, probed_gpus(), torch_cuda(), _architectures)


_architectures = cache(torch_architectures)  # each call imports torch in a process
