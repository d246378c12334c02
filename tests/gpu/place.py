"""Where torch computes in the GPU suite: on the GPU, or on the host beside the driver's double.

The double's device memory is host memory, in which a trainer's tensors lie if the process is preloaded. There the
suite tests its own code, with small sizes, and measures nothing.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indb_tensile.device.cuda import CudaDevice

PLACE = os.environ.get("TENSILE_GPU_PLACE", "cuda:0")  # `cpu` on the double
ON_DOUBLE = PLACE == "cpu"


def synchronise() -> None:
    """Wait until the device has done its work."""
    if not ON_DOUBLE:
        import torch

        torch.cuda.synchronize()


def allocate_from(device: "CudaDevice") -> None:
    """Let torch allocate its tensors of the GPU from this device."""
    if not ON_DOUBLE:
        from indb_tensile.executor.run.open_device import serve_torch

        serve_torch(device)
