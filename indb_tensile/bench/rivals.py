"""PyTorch's own ways to train with less memory, as rivals of a planned step: run, not simulated.

All share one module with fused Adam, upload their batch through the emulated link as a planned step does, and free
their gradients with the iteration. On an emulated device memory is the host's, so `save_on_cpu` would keep what it
saves where it is: it is written again with the same hooks that torch's own uses, and copies every saved tensor
through the emulated link, in order with the computation, as torch's own does on a GPU's one stream.
"""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as functorch
from torch.autograd.graph import saved_tensors_hooks

from indb_tensile.bench.networks import Network
from indb_tensile.bench.rows import MINCUT
from indb_tensile.bench.segments import Forward, segmented
from indb_tensile.bench.trial import RATE, Subject
from indb_tensile.executor.device import EmulatedDevice, HostBuffer

EAGER = "eager"
CHECKPOINT = "checkpoint"
SAVE_ON_CPU = "save_on_cpu, emulated link"
AOT_EAGER, INDUCTOR = "aot_eager", "inductor"  # compilers: the partitioned graph in eager's kernels, or in new ones
SEED = 1  # of what an iteration draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to train: called in turns, each time from the same start."""

    method: str
    restart: Callable[[], None]
    iterate: Callable[[], None]
    values: Callable[[], dict[str, torch.Tensor]]  # copies of parameters and buffers, by name


class Torch:
    """One module, trained by PyTorch."""

    def __init__(self, subject: Subject, device: EmulatedDevice) -> None:
        self._subject = subject
        self._device = device
        self.module = subject.module
        self._optimizer = torch.optim.Adam(self.module.parameters(), lr=RATE, fused=True)
        self._initial = self.values()
        self._host = [_to_host(device, tensor) for tensor in (subject.x, subject.y)]

    def contender(self, method: str, forward: Forward, around: Callable[[], Any] | None = None) -> Contender:
        """An iteration with this forward; `around` is a context for forward and backward."""

        def iterate() -> None:
            if around is None:
                self._backward(forward)
            else:
                with around():
                    self._backward(forward)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

        return Contender(method=method, restart=self.restart, iterate=iterate, values=self.values)

    def restart(self) -> None:
        """Parameters, buffers and optimizer as they were at first."""
        with torch.no_grad():
            for name, tensor in self._named():
                tensor.copy_(self._initial[name])
            for state in self._optimizer.state.values():
                for tensor in state.values():
                    tensor.zero_()

    def values(self) -> dict[str, torch.Tensor]:
        """Copies of parameters and buffers."""
        return {name: tensor.detach().clone() for name, tensor in self._named()}

    def standing(self) -> Iterator[torch.Tensor]:
        """What is there between two iterations; after the first one, optimizer state is."""
        yield from (tensor for _, tensor in self._named())
        for state in self._optimizer.state.values():
            yield from state.values()

    def close(self) -> None:
        """Give the batch's host memory back."""
        for buffer in self._host:
            self._device.host_free(buffer)

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.module.named_parameters()
        yield from self.module.named_buffers()

    def _backward(self, forward: Forward) -> None:
        x, y = map(self._upload, (self._subject.x, self._subject.y), self._host)
        self._subject.loss(forward(x), y).backward()  # type: ignore[no-untyped-call]

    def _upload(self, tensor: torch.Tensor, buffer: HostBuffer) -> torch.Tensor:
        copied = torch.empty_like(tensor)
        self._device.wait(self._device.copy_in(copied.data_ptr(), buffer, tensor.nbytes))
        return copied


def rivals(
    shared: Torch,
    network: Network | None,
    device: EmulatedDevice,
    *,
    segments: Sequence[int],
    compiled: Sequence[tuple[str, float]],
) -> Iterator[Contender]:
    """Eager first, then all that can be made of it; checkpoints only of networks whose blocks are known."""
    yield shared.contender(EAGER, shared.module)
    for count in segments if network is not None else ():
        assert network is not None
        yield shared.contender(f"{CHECKPOINT} {count}", segmented(network, shared.module, count))
    yield shared.contender(SAVE_ON_CPU, shared.module, _Saved(device).hooks)
    for compiler, budget in compiled:
        contender = _compiled(shared, budget, compiler)
        if contender is not None:
            yield contender


def has_compiler() -> bool:
    """Whether there is a compiler for C++, which inductor needs."""
    return bool(shutil.which("g++") or shutil.which("clang++"))


def _compiled(shared: Torch, budget: float, compiler: str) -> Contender | None:
    """The step with its forward compiled; None, and why on the error output, where that fails."""
    torch.compiler.reset()
    compiled: Any = torch.compile(nn.Sequential(shared.module), backend=compiler)
    contender = shared.contender(f"{MINCUT} {budget:g}, {compiler}", compiled)
    try:
        with functorch.patch(activation_memory_budget=budget):
            contender.iterate()
    except (TorchDynamoException, RuntimeError) as error:
        print(f"{contender.method} is left out: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    return contender


class _Saved:
    """What the backward pass needs, kept on the host: torch.autograd.graph.save_on_cpu by way of the link."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device

    def hooks(self) -> saved_tensors_hooks:
        """The context of one forward and backward."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> "_Packed":
        dense = _dense(tensor.detach())
        packed = _Packed(self._device, dense)
        if dense.nbytes:
            self._device.wait(self._device.copy_out(packed.buffer, dense.data_ptr(), dense.nbytes))
        return packed

    def _unpack(self, packed: "_Packed") -> torch.Tensor:
        tensor = torch.empty_strided(packed.shape, packed.stride, dtype=packed.dtype)
        if tensor.nbytes:
            self._device.wait(self._device.copy_in(tensor.data_ptr(), packed.buffer, tensor.nbytes))
        return tensor


class _Packed:
    """A saved tensor on the host; its memory goes back when autograd lets go of it."""

    def __init__(self, device: EmulatedDevice, tensor: torch.Tensor) -> None:
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self._device = device
        self.buffer = device.host_allocate(max(1, tensor.nbytes))

    def __del__(self) -> None:
        self._device.host_free(self.buffer)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor if its bytes lie in one piece, in whatever order, else a copy of which that is true."""
    like = torch.empty_like(tensor, device="meta")
    return tensor if like.stride() == tensor.stride() else tensor.clone()


def _to_host(device: EmulatedDevice, tensor: torch.Tensor) -> HostBuffer:
    buffer = HostBuffer(device.host_allocate(tensor.nbytes))
    device.wait(device.copy_out(buffer, tensor.data_ptr(), tensor.nbytes))
    return buffer
