"""Opens one job's device in a trainer, and says where torch's tensors are while its step program runs.

On this machine's own device, and on the emulated one, they are CPU tensors that the preloaded shim places
(serving.py). On a GPU they are CUDA
tensors, and torch's pluggable allocator asks the same script for their addresses. Neither back end is known to who
runs the program.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from indb_tensile import _native
from indb_tensile.config import variable
from indb_tensile.device.allocator_shim import Serving
from indb_tensile.device.backend import CPU
from indb_tensile.device.cuda import CudaDevice, CudaRegions, ordinal
from indb_tensile.device.device import CpuDevice, EmulatedDevice
from indb_tensile.device.trainer_footprint import OUTSIDE_BYTES
from indb_tensile.errors import DeviceError
from indb_tensile.executor.latency.calibrate import Site, calibrate_on
from indb_tensile.executor.latency.gpu_clock import EventClock, QueueTimer
from indb_tensile.executor.run.cuda_graphs import CudaGraphs, Graphs, TorchCapture, set_libraries_up
from indb_tensile.executor.run.precision import settle_precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One job's device. `torch_device` is where its tensors live, `clock` times its operators.

    `prove` raises where the machine has not the memory that was granted; None where it is there. `check` raises what
    has befallen the device; None where torch tells of nothing that it should be asked about. `graphs` record
    iterations where the device can.
    """

    device: EmulatedDevice | CpuDevice | CudaDevice
    serving: Serving | None
    torch_device: torch.device
    clock: EventClock | None = None
    prove: Callable[[int], None] | None = None
    check: Callable[[], None] | None = None
    graphs: Graphs | None = None


def torch_device(name: str) -> torch.device:
    """Where torch computes for the device of this name. Raises DeviceError where torch cannot use it."""
    if not name.startswith("cuda"):
        return torch.device("cpu")
    if torch.version.cuda is None:
        raise DeviceError(
            f"the controller chose {name}, and this torch has no CUDA",
            hint="Run trainers and controller from one environment.",
        )
    return torch.device(name)


@contextmanager
def open_device(
    name: str,
    claim: tuple[int, int, int],
    host_pool_bytes: int,
    regions: CudaRegions | None,
    place: torch.device,
    strict_for: str | None = None,
    swap_directory: str = "",
) -> Iterator[Opened]:
    """The device of that name for a claim: the ledger's descriptor, slot and epoch.

    On a GPU it must come before anything in the process uses CUDA. On the others strict mode may be had, for a job
    of this name. `swap_directory` is where the machine's own device keeps what is swapped out.
    """
    if not name.startswith("cuda"):
        strict = strict_for is not None
        with (
            CpuDevice(*claim, host_pool_bytes, swap_directory, strict=strict)
            if name == CPU
            else EmulatedDevice(*claim, host_pool_bytes, strict=strict)
        ) as device:
            serving = Serving.of(device.hook_address())
            if strict_for is not None:
                _be_strict(serving, strict_for)
            yield Opened(device=device, serving=serving, torch_device=place, prove=device.prove)
        return
    with CudaDevice(*claim, host_pool_bytes, device=ordinal(name), regions=regions) as gpu:
        try:
            yield _on_gpu(gpu, place) if place.type == "cuda" else _on_host(gpu, place)
        except RuntimeError as error:  # torch's own word for whatever befell the device, whoever's fault it is
            gpu.check_context()
            _native.cuda_raise_told(str(error))  # and for what our own allocator told it
            raise


def capturing_on(place: torch.device) -> AbstractContextManager[object]:
    """Around capturing: a step's operators are those of the device that its tensors are on."""
    return nullcontext() if place.type == "cpu" else place


def settle_results(place: torch.device, precision: str = "torch") -> None:
    """Equal inputs give equal bits on a GPU: before CUDA starts, and in every process whose bits are compared.

    Both sides compute in the same precision. A kernel that torch has in no deterministic form warns and runs all the
    same. Batch normalisation that was captured runs torch's native kernels, eager's runs cuDNN's: their bits differ,
    and what is compared bit for bit is the captured step under a plan and without one.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    filling: Any = torch.utils.deterministic  # torch gives it no type
    filling.fill_uninitialized_memory = False  # one kernel more for each tensor that is made, and no bit of it read
    torch.backends.cuda.enable_cudnn_sdp(False)  # attention that has no deterministic form, where others have one
    torch.backends.cudnn.benchmark = False
    settle_precision(precision, place)


def serve_torch(device: CudaDevice) -> None:
    """Let torch take all its CUDA memory from this device; call it before anything in the process uses CUDA.

    Raises RuntimeError, torch's own, when CUDA was used already. The device must outlive every tensor.
    """
    device.serve_torch()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        _native.__file__, "tensile_cuda_allocate", "tensile_cuda_free"
    )
    # Without it torch's record_stream silently does nothing.
    record = ctypes.cast(ctypes.CDLL(_native.__file__).tensile_cuda_record_stream, ctypes.c_void_p).value
    native: Any = allocator._allocator  # noqa: SLF001 - torch gives the function no name of its own, nor a type
    native.set_record_stream_fn(record)
    torch.cuda.memory.change_current_allocator(allocator)


def _on_gpu(device: CudaDevice, place: torch.device) -> Opened:
    settle_results(place)
    device.allow_outside(OUTSIDE_BYTES)
    serve_torch(device)
    torch.cuda.set_device(place)
    computing: Any = torch.cuda.Stream  # torch gives it no type
    torch.cuda.set_stream(computing(place))  # what the default stream is given cannot be recorded
    device.compute_on(torch.cuda.current_stream(place).cuda_stream)
    set_libraries_up(place)
    serving = Serving(device.hook_address(), _native.cuda_serve_address(), device.pieces_address())
    calibrate_on(Site(device=place, serving=serving, timer=QueueTimer(place), refusal=_native.cuda_take_refusal))
    return Opened(
        device=device,
        serving=serving,
        torch_device=place,
        clock=EventClock(place),
        check=device.check_context,
        graphs=CudaGraphs(device, partial(TorchCapture, place), serving),
    )


def _on_host(device: CudaDevice, place: torch.device) -> Opened:
    """The driver's double: its device memory is the host's, and torch computes there."""
    serving = Serving.of(device.hook_address(), device.pieces_address())
    return Opened(device=device, serving=serving, torch_device=place)


def _be_strict(serving: Serving | None, who: str) -> None:
    if serving is None:
        raise DeviceError(
            "strict mode needs tensors in the device's memory, and the library for that is not preloaded",
            hint=f"Turn {variable('strict')} off, or build the package with its native library.",
        )
    serving.be_strict(who)
