"""Describe this machine as one JSON object of the results: `python -m tests.gpu.machine`."""

import dataclasses
import os
import platform

import torch

from indb_tensile.device.cuda import NoGpu, probe
from indb_tensile.device.hardware import free_memory_bytes, memory, processor
from tests.gpu.conftest import report


def main() -> None:
    """Report the GPU, its driver, torch, the processor and its memory, and how long the library took to build."""
    gpus = probe()
    report(
        "machine",
        **(dataclasses.asdict(gpus) | ({"reason": gpus.reason} if isinstance(gpus, NoGpu) else {})),
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        architectures=torch.cuda.get_arch_list() if torch.version.cuda else [],
        python=platform.python_version(),
        system=platform.platform(),
        processor=processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory().size_bytes,
        free_memory_bytes=free_memory_bytes(),
        build_s=os.environ.get("TENSILE_GPU_BUILD_S"),
    )


if __name__ == "__main__":
    main()
