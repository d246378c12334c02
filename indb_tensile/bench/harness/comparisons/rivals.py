"""PyTorch's own ways to train in less memory. They run for real, as rivals of a planned step.

All rivals share one module with fused Adam, upload their batch as a planned step does, and free their gradients at
the end of each iteration.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as functorch

from indb_tensile.bench.harness.comparisons.segments import Forward, segmented
from indb_tensile.bench.harness.comparisons.torch_transfers import LinkTransfers, TorchTransfers, Transfers
from indb_tensile.bench.harness.execution.trial import RATE, TrainingSubject
from indb_tensile.bench.harness.networks.known_networks import Network
from indb_tensile.bench.harness.results.rows import MINCUT
from indb_tensile.device.device import EmulatedDevice
from indb_tensile.executor.run.open_device import OpenDevice
from indb_tensile.executor.run.state import HOST

EAGER = "eager"
CHECKPOINT = "checkpoint"
# Compilers. Both partition the graph; only inductor has kernels of its own.
AOT_EAGER, INDUCTOR = "aot_eager", "inductor"
SEED = 1  # seed of the random numbers that an iteration draws

Values = dict[str, torch.Tensor]


class Contender(Protocol):
    """One way to train. It runs in turns, each from the same initial state."""

    @property
    def method(self) -> str:
        """Return the name of the way to train."""
        ...

    def turn(self, iterations: int) -> float:
        """Restart, warm up by one iteration, and run `iterations` more. Returns the nanoseconds for each of them."""
        ...

    def values(self) -> Values:
        """Return copies of the present parameters and buffers, by name, on the host."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalContender:
    """A contender in this process. `settle` waits for the end of all work that it has started."""

    method: str
    restart: Callable[[], None]
    iterate: Callable[[], None]
    values: Callable[[], Values]
    settle: Callable[[], None] = lambda: None

    def turn(self, iterations: int) -> float:
        """Run one turn. Every turn draws the same random numbers."""
        self.restart()
        torch.manual_seed(SEED)
        self.iterate()
        self.settle()
        start_ns = time.perf_counter_ns()
        for _ in range(iterations):
            self.iterate()
        self.settle()
        return (time.perf_counter_ns() - start_ns) / iterations


class TorchTraining:
    """One module that PyTorch trains."""

    def __init__(self, subject: TrainingSubject, transfers: Transfers, place: torch.device = HOST) -> None:
        """Prepare the module on `place`. On a GPU that is a copy, so the subject's own module stays unchanged."""
        self.place = place
        self.module = subject.module if place == HOST else deepcopy(subject.module).to(place)
        self._loss = subject.loss
        self._transfers = transfers
        self._settle = partial(torch.cuda.synchronize, place) if place.type == "cuda" else _do_nothing
        self._optimizer = torch.optim.Adam(self.module.parameters(), lr=RATE, fused=True)
        self._initial = self.values()
        self._batch = [transfers.upload(tensor) for tensor in (subject.x, subject.y)]

    @classmethod
    def on(cls, subject: TrainingSubject, opened: OpenDevice) -> "TorchTraining":
        """Use the device that this process has opened: through an emulated link, or by torch's own transfers."""
        device, place = opened.device, opened.torch_device
        return cls(
            subject, LinkTransfers(device) if isinstance(device, EmulatedDevice) else TorchTransfers(place), place
        )

    def contender(self, method: str, forward: Forward, around: Callable[[], Any] | None = None) -> LocalContender:
        """Return a contender with this forward pass. `around` is a context manager for forward and backward pass."""

        def iterate() -> None:
            if around is None:
                self._backward(forward)
            else:
                with around():
                    self._backward(forward)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

        return LocalContender(
            method=method, restart=self.restart, iterate=iterate, values=self.values, settle=self._settle
        )

    def restart(self) -> None:
        """Reset parameters, buffers and optimizer state to their initial values."""
        with torch.no_grad():
            for name, tensor in self._named_tensors():
                tensor.copy_(self._initial[name])
            for state in self._optimizer.state.values():
                for tensor in state.values():
                    tensor.zero_()

    def values(self) -> Values:
        """Return copies of parameters and buffers, on the host."""
        return {name: tensor.detach().to(HOST, copy=True) for name, tensor in self._named_tensors()}

    def standing(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that exist between two iterations; optimizer state only after the first iteration."""
        yield from (tensor for _, tensor in self._named_tensors())
        for state in self._optimizer.state.values():
            yield from state.values()

    def offloading(self) -> LocalContender:
        """Return a contender that moves every tensor saved for the backward pass to the host and back."""
        return self.contender(self._transfers.label, self.module, self._transfers.offload_saved_tensors)

    def close(self) -> None:
        """Release the batch's host memory."""
        self._transfers.close()

    def _named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.module.named_parameters()
        yield from self.module.named_buffers()

    def _backward(self, forward: Forward) -> None:
        x, y = (bring() for bring in self._batch)
        self._loss(forward(x), y).backward()  # type: ignore[no-untyped-call]


def _do_nothing() -> None:
    pass


def rivals(
    shared: TorchTraining,
    network: Network | None,
    *,
    segments: Sequence[int],
    compiled: Sequence[tuple[str, float]],
) -> Iterator[LocalContender]:
    """Yield eager first, then its variants. Only networks whose blocks are known can be checkpointed in segments."""
    yield shared.contender(EAGER, shared.module)
    for count in segments if network is not None else ():
        assert network is not None
        yield shared.contender(f"{CHECKPOINT} {count}", segmented(network, shared.module, count))
    yield shared.offloading()
    for compiler, budget in compiled:
        contender = _compiled(shared, budget, compiler)
        if contender is not None:
            yield contender


def has_compiler() -> bool:
    """Return whether a C++ compiler is installed, which inductor needs."""
    return bool(shutil.which("g++") or shutil.which("clang++"))


def _compiled(shared: TorchTraining, budget: float, compiler: str) -> LocalContender | None:
    """Return the step with a compiled forward pass. If compiling fails, print the reason and return None."""
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
