"""Opens one job's device in a trainer, and sets up torch to place tensors in that device.

On the CPU device and on the emulated device, tensors are CPU tensors that the preloaded shim places
(device/allocator_shim.py). On a GPU they are CUDA tensors, and torch's pluggable allocator asks the same script for
their addresses. Code that runs the program does not depend on the back end.
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
from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.device.backend import CPU
from indb_tensile.device.cuda import CudaDevice, CudaRegions, ordinal
from indb_tensile.device.device import CpuDevice, EmulatedDevice
from indb_tensile.device.trainer_footprint import OUTSIDE_BYTES
from indb_tensile.errors import DeviceError, DeviceMemoryError
from indb_tensile.executor.latency.calibration_site import CalibrationSite, calibrate_on
from indb_tensile.executor.latency.gpu_clock import EventClock, QueueTimer, StreamQueue
from indb_tensile.executor.run.cuda_graphs import CudaGraphs, Graphs, TorchCapture, allocate_workspaces
from indb_tensile.executor.run.precision import settle_precision


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevice:
    """One job's open device. `torch_device` is the device of its tensors, and `clock` times its operators.

    `prove` raises if the machine lacks the memory that was granted; `prove` is None if the memory is certain. `check`
    raises an error of the device; `check` is None if torch's errors are never errors of the device. `graphs` records
    iterations if the device supports it.
    """

    device: EmulatedDevice | CpuDevice | CudaDevice
    serving: ArenaServing | None
    torch_device: torch.device
    clock: EventClock | None = None
    prove: Callable[[int], None] | None = None
    check: Callable[[], None] | None = None
    graphs: Graphs | None = None


def torch_device(name: str) -> torch.device:
    """Return torch's device for the device of this name. Raise DeviceError if torch cannot use it."""
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
    tensor_device: torch.device,
    strict_for: str | None = None,
    swap_directory: str = "",
) -> Iterator[OpenDevice]:
    """Open the device of that name for a claim: the ledger's descriptor, slot and epoch.

    On a GPU call this function before anything in the process uses CUDA. Other devices support strict mode:
    `strict_for` names the job in its reports. The CPU device keeps swapped-out data in `swap_directory`.
    """
    if not name.startswith("cuda"):
        strict = strict_for is not None
        with (
            CpuDevice(*claim, host_pool_bytes, swap_directory, strict=strict)
            if name == CPU
            else EmulatedDevice(*claim, host_pool_bytes, strict=strict)
        ) as device:
            serving = ArenaServing.of(device.hook_address())
            if strict_for is not None:
                _enable_strict(serving, strict_for)
            yield OpenDevice(device=device, serving=serving, torch_device=tensor_device, prove=device.prove)
        return
    with CudaDevice(*claim, host_pool_bytes, device=ordinal(name), regions=regions) as gpu:
        try:
            yield _on_gpu(gpu, tensor_device) if tensor_device.type == "cuda" else _on_host(gpu, tensor_device)
        except RuntimeError as error:  # torch raises this for every error of the device, whatever the cause
            gpu.check_context()
            _native.cuda_raise_told(str(error))  # raise our allocator's own error, if torch's error only repeats it
            raise


def is_out_of_memory(error: Exception) -> bool:
    """Return whether torch, or our allocator by way of torch, was refused device memory.

    Raises the error of our allocator, if torch's error repeats one that has another cause.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError | DeviceMemoryError):
        return True
    try:
        _native.cuda_raise_told(str(error))
    except DeviceMemoryError:
        return True
    return "can't allocate memory" in str(error)  # as torch says of the processor's memory


def capturing_on(tensor_device: torch.device) -> AbstractContextManager[object]:
    """Return the context for capturing, so that a step's operators are those of the device of its tensors."""
    return nullcontext() if tensor_device.type == "cpu" else tensor_device


def settle_results(tensor_device: torch.device, precision: str = "torch") -> None:
    """Make equal inputs give equal bits on a GPU.

    Call this function before CUDA starts, in every process whose bits are compared; all these processes need the same
    precision. A kernel without a deterministic form warns and still runs. Captured batch normalisation runs torch's
    native kernels while eager mode runs cuDNN's, so their bits differ. The bit-for-bit comparison is between the
    captured step with a plan and without one.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    deterministic: Any = torch.utils.deterministic  # torch gives it no type
    deterministic.fill_uninitialized_memory = False  # filling costs a kernel per new tensor, and no program reads it
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN's attention has no deterministic form, and other kernels do
    torch.backends.cudnn.benchmark = False
    settle_precision(precision, tensor_device)


def serve_torch(device: CudaDevice) -> None:
    """Make torch allocate all its CUDA memory from this device.

    Call this function before anything in the process uses CUDA; otherwise torch raises RuntimeError. The device must
    outlive every tensor.
    """
    device.serve_torch()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        _native.__file__, "tensile_cuda_allocate", "tensile_cuda_free"
    )
    # Without this function torch's record_stream silently does nothing.
    record = ctypes.cast(ctypes.CDLL(_native.__file__).tensile_cuda_record_stream, ctypes.c_void_p).value
    native: Any = allocator._allocator  # noqa: SLF001 - torch has neither a public name nor a type for it
    native.set_record_stream_fn(record)
    torch.cuda.memory.change_current_allocator(allocator)


def _on_gpu(device: CudaDevice, tensor_device: torch.device) -> OpenDevice:
    settle_results(tensor_device)
    device.allow_outside(OUTSIDE_BYTES)
    serve_torch(device)
    torch.cuda.set_device(tensor_device)
    computing: Any = torch.cuda.Stream  # torch gives it no type
    torch.cuda.set_stream(computing(tensor_device))  # work on the default stream cannot be recorded
    device.compute_on(torch.cuda.current_stream(tensor_device).cuda_stream)
    allocate_workspaces(tensor_device)
    serving = ArenaServing(device.hook_address(), _native.cuda_serve_address(), device.pieces_address())
    calibrate_on(
        CalibrationSite(
            device=tensor_device,
            serving=serving,
            timer=QueueTimer(StreamQueue(tensor_device)),
            refusal=_native.cuda_take_refusal,
        )
    )
    return OpenDevice(
        device=device,
        serving=serving,
        torch_device=tensor_device,
        clock=EventClock(tensor_device),
        check=device.check_context,
        graphs=CudaGraphs(device, partial(TorchCapture, tensor_device), serving),
    )


def _on_host(device: CudaDevice, tensor_device: torch.device) -> OpenDevice:
    """Return the open device with host tensors, for tests that replace the driver by a double in host memory."""
    serving = ArenaServing.of(device.hook_address(), device.pieces_address())
    return OpenDevice(device=device, serving=serving, torch_device=tensor_device)


def _enable_strict(serving: ArenaServing | None, job: str) -> None:
    if serving is None:
        raise DeviceError(
            "strict mode needs tensors in the device's memory, and the library for that is not preloaded",
            hint=f"Turn {variable('strict')} off, or build the package with its native library.",
        )
    serving.be_strict(job)
