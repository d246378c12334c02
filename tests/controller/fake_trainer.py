"""A fake trainer without torch. It speaks the trainer's protocol, and its job's model name chooses its behaviour:

- `finish` finishes as soon as it has adopted a plan. `train` trains until it is stopped.
- `read` waits for a message instead of reading its table, like a trainer that waits for a lock.
- `fail` reports a fault. `lose` reports a lost device while the file `FAKE_DEVICE_GONE` exists.
- `calibrate` captures an unknown operator, so that the controller has it calibrated first.
- `babble` sends bytes that are no message. `absurd …` sends a well-formed message that makes no sense.
- `children` leaves a child process behind. `stray` leaves a child process outside its process group.
- `hoard` allocates its whole grant while it calibrates, and frees the memory at SIGUSR1.
- `stubborn` ignores SIGTERM. `deaf` never adopts a plan.
- `report` sends its measurement again at each SIGUSR1. `alive` reports progress while it trains.

It leaves the device when it is told to. Like a real trainer, it allocates through the device ledger, in its grant.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from indb_tensile import config
from indb_tensile.device.device import EmulatedDevice
from indb_tensile.job import Blame, JobId, Phase
from indb_tensile.messages import (
    Adopt,
    Adopted,
    Assign,
    Calibrate,
    Calibrated,
    Captured,
    Failed,
    Finished,
    Measured,
    Message,
    Park,
    Parked,
    Progressed,
    Ready,
    TrainerLink,
)
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId

MIB = 1 << 20
PR_SET_PDEATHSIG = 1


def graph(size_bytes: int) -> StepGraph:
    tensor = Tensor(id=TensorId(0), name="t", size_bytes=size_bytes, role=Role.ACTIVATION)
    operator = Operator(name="op", signature="op", stage=Stage.FORWARD, reads=(), writes=(TensorId(0),))
    return StepGraph(tensors=(tensor,), operators=(operator,))


def serve(link: TrainerLink, assigned: Assign) -> None:
    job, behaviour = assigned.job.job, assigned.job.spec.model
    if behaviour.startswith("absurd "):
        link.send(absurd(job)[behaviour.removeprefix("absurd ")])
    else:
        behave(link, assigned, job, behaviour)


def behave(link: TrainerLink, assigned: Assign, job: JobId, behaviour: str) -> None:
    size_bytes = int(assigned.job.spec.hyperparams.get("size_bytes", MIB))
    if behaviour == "read":
        link.receive()
    if behaviour == "fail":
        link.send(Failed(job=job, sqlstate="22000", message="column y is all NULL", hint="Choose another target."))
        return
    if behaviour == "lose" and Path(os.environ["FAKE_DEVICE_GONE"]).exists():
        link.send(
            Failed(job=job, sqlstate="58000", message="the device is gone", hint="Wait.", retry=True, lost=True)
        )
        return
    if behaviour == "babble":
        os.write(config.inherited_descriptors(os.environ).link_fd, b"\x00\x00\x00\x05hello")
        time.sleep(60)
    if behaviour == "children":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    if behaviour == "stray":
        sleep = "import time; time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True, close_fds=False)
    if behaviour == "hoard":
        hoard(link, assigned, size_bytes)
        return
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    step = (graph(size_bytes),)
    link.send(Captured(job=job, graphs=step, latency_ns=((1000,),), unknown=int(behaviour == "calibrate")))
    if behaviour == "calibrate":
        message = link.receive()
        assert isinstance(message, Calibrate)
        overflow_bytes = max(0, size_bytes - message.grant_bytes)
        link.send(Calibrated(job=job, graphs=step, latency_ns=((900,),), overflow_bytes=overflow_bytes))
    follow(link, job, behaviour, size_bytes)


def absurd(job: JobId) -> dict[str, Message]:
    """Return well-formed messages that make no sense, by name."""
    steps, latency_ns = (graph(MIB),), ((1000,),)
    return {
        "without a graph": Captured(job=job, graphs=(), latency_ns=(), unknown=0),
        "with too many latencies": Captured(job=job, graphs=steps, latency_ns=((1000, 2000),), unknown=0),
        "with a negative latency": Captured(job=job, graphs=steps, latency_ns=((-1000,),), unknown=0),
        "of a calibration without a request": Calibrated(job=job, graphs=steps, latency_ns=latency_ns),
        "of an unknown plan": Adopted(job=job, generation=99),
        "of a parking without an order": Parked(job=job, number=0, host_bytes=-1),
        "of a measurement without a plan": Measured(
            job=job, generation=7, latency_ns=(), iteration_ns=-1, stall_ns=-1, peak_bytes=-1
        ),
        "of a second start": Ready(pid=1),
        "of an end before the start": Finished(job=job),
        "of a controller": Calibrate(grant_bytes=-1),
    }


def hoard(link: TrainerLink, assigned: Assign, size_bytes: int) -> None:
    job = assigned.job.job
    step, latency_ns = (graph(size_bytes),), ((1000,),)
    link.send(Captured(job=job, graphs=step, latency_ns=latency_ns, unknown=1))
    message = link.receive()
    assert isinstance(message, Calibrate)
    device_fd = config.inherited_descriptors(os.environ).device_fd
    with EmulatedDevice(device_fd, assigned.slot, assigned.epoch, MIB) as device:
        hoarded = [device.allocate(message.grant_bytes)]
        signal.signal(signal.SIGUSR1, lambda *_: device.free(hoarded.pop()))
        link.send(Calibrated(job=job, graphs=step, latency_ns=latency_ns))
        follow(link, job, "train", size_bytes)


def follow(link: TrainerLink, job: JobId, behaviour: str, size_bytes: int) -> None:
    while isinstance(message := link.receive(), Adopt | Park):
        if behaviour == "deaf":
            continue
        if isinstance(message, Park):
            if not message.in_memory:
                text = f"job {job} left the device"
                link.send(Failed(job=job, sqlstate="53200", message=text, retry=True, blame=Blame.NOBODY))
                return
            link.send(Parked(job=job, number=message.number, host_bytes=4096))
            continue
        link.send(Adopted(job=job, generation=message.generation))
        measured = Measured(
            job=job,
            generation=message.generation,
            latency_ns=(1000,),
            iteration_ns=1000,
            stall_ns=0,
            peak_bytes=size_bytes,
        )
        link.send(measured)
        if behaviour == "report":
            signal.signal(signal.SIGUSR1, lambda *_, measured=measured: link.send(measured))
        if behaviour == "alive":
            threading.Thread(target=report_progress, args=(link, job), daemon=True).start()
        if behaviour in ("finish", "calibrate", "close"):
            link.send(Finished(job=job, closing_s=7.0 if behaviour == "close" else None))
            return


def report_progress(link: TrainerLink, job: JobId) -> None:
    while True:
        link.send(Progressed(job=job, phase=Phase.TRAINING, epoch=1, step=1, longest_s=0.001))
        time.sleep(0.05)


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    inherited = config.inherited_descriptors(os.environ)
    assert os.fstat(inherited.device_fd)
    link = TrainerLink(socket.socket(fileno=inherited.link_fd))
    link.send(Ready(pid=os.getpid()))
    assigned = link.receive()
    if isinstance(assigned, Assign):
        serve(link, assigned)
    return 0
