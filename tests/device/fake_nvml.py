"""A double of NVML's library for one GPU."""

from dataclasses import dataclass, field
from typing import Any

import pynvml

from indb_tensile.device.nvml import Library, Nvml

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"


@dataclass
class Row:
    """The answer of a library function: a structure with these fields."""

    fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]


@dataclass
class FakeLibrary:
    """Answers as the real library. `errors` maps a function to the NVML error that it raises."""

    errors: dict[str, int] = field(default_factory=dict)
    uuid: str = UUID
    started: int = 0
    used_bytes: int = 300
    clients: tuple[int, ...] = ()

    def _enter(self, name: str) -> None:
        if name in self.errors:
            raise pynvml.NVMLError(self.errors[name])

    def nvmlInit(self) -> None:
        self._enter("init")
        self.started += 1

    def nvmlShutdown(self) -> None:
        self._enter("shutdown")
        self.started -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Any:
        self._enter("handle")
        if uuid != self.uuid:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "handle"

    def nvmlDeviceGetMemoryInfo(self, handle: Any, /) -> Any:
        assert handle == "handle"
        self._enter("memory")
        return Row({"total": 1000, "used": self.used_bytes})

    def nvmlDeviceGetUtilizationRates(self, handle: Any, /) -> Any:
        assert handle == "handle"
        self._enter("rates")
        return Row({"gpu": 80, "memory": 25})

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any, /) -> Any:
        assert handle == "handle"
        self._enter("processes")
        return [Row({"pid": 12, "usedGpuMemory": None}), Row({"pid": 7, "usedGpuMemory": 200})]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any, /) -> Any:
        assert handle == "handle"
        self._enter("clients")
        return [Row({"pid": pid, "usedGpuMemory": 50}) for pid in self.clients]


def started(library: Library) -> Nvml:
    nvml = Nvml.start(library)
    assert isinstance(nvml, Nvml)
    return nvml
