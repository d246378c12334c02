"""A network with an operator whose scratch memory can be enlarged while it trains, as another algorithm would do.

The results do not depend on the scratch.
"""

from typing import Any, NamedTuple

import torch
from torch import nn

from indb_tensile.executor.capture.optimizer import OptimizerSettings
from tests.executor.models import BATCH, CLASSES, TAIL, Job

_Library: Any = torch.library.Library
_LIBRARY = _Library("tensile_tests", "DEF")  # the declared operators exist as long as this object
_LIBRARY.define("growing(Tensor x) -> Tensor")


class Scratch(NamedTuple):
    """The scratch of each run: some pieces at once, then some more one after the other, of about 64,000 bytes each.

    With `above` an operator needs it only if its input has a number above that limit. The first piece has the size of
    this `first` number.
    """

    at_once: int = 1
    first: int = 0
    in_turn: int = 0
    above: float | None = None


class Need:
    """The scratch that the operator needs now."""

    scratch = Scratch()
    grown = Scratch()
    grows_after: int | None = None  # number of runs after which the operator needs `grown`
    runs = 0


def _growing(x: torch.Tensor) -> torch.Tensor:
    Need.runs += 1
    need = Need.scratch if Need.grows_after is None or Need.runs <= Need.grows_after else Need.grown
    if need.above is not None and float(x.numpy().max()) <= need.above:
        need = Scratch()
    pieces = [torch.empty(16_000 + 16 * number) for number in range(need.first, need.first + need.at_once)]
    result = x * 2
    del pieces
    for number in range(need.in_turn):
        torch.empty(16_000 + 16 * number)
    return result


_LIBRARY.impl("growing", _growing, "CPU")
_LIBRARY.impl("growing", torch.empty_like, "Meta")


def _gradient(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    del ctx
    return gradient * 2


_library: Any = torch.library
_library.register_autograd("tensile_tests::growing", _gradient, lib=_LIBRARY)


class Growing(nn.Module):
    """Two linear layers with the operator between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.ops.tensile_tests.growing(torch.relu(self.first(x))))
        return logits


def growing_job() -> Job:
    """Return a job with two full batches and a tail batch. Its first batch has the largest numbers."""
    torch.manual_seed(0)
    module = Growing()

    def batch(rows: int, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        return factor * torch.randn(rows, 6), torch.randint(0, CLASSES, (rows,))

    batches = (batch(BATCH, 9.0), batch(BATCH, 0.1), batch(TAIL, 0.1))
    return Job(module=module, settings=OptimizerSettings(), batches=batches, held_out=batch(BATCH, 0.1))
