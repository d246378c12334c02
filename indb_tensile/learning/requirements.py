"""What a network needs at the very least, counted on the meta device before any of it is allocated.

Only what no plan can avoid is counted, so that nothing is refused that could run: the update of a parameter has the
parameter and its gradient on the device as a whole; everything that outlives an iteration is on the device or in the
pool of host memory; and the parameters are built in host memory first.
"""

from dataclasses import dataclass

from torch import nn

from indb_tensile.errors import HostMemoryError, MemoryLimitError
from indb_tensile.learning.hyperparams import TrainingSettings
from indb_tensile.sizes import compared, size

_STATES = {"sgd": 0, "adam": 2, "adamw": 2, "adagrad": 1, "rmsprop": 1}  # tensors beside each parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The memory that a job may have.

    `device_bytes` is the least of the budget and the job's own limit, `limited` whether it is the latter.
    `host_bytes` is all that this machine or container has, swap space included; `free_bytes` what of it is free now.
    """

    device_bytes: int
    limited: bool
    host_pool_bytes: int
    host_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The least memory of one update, of all parameters and buffers, and of these with optimizer state."""

    update_bytes: int
    weights_bytes: int
    state_bytes: int

    @classmethod
    def of(cls, module: nn.Module, settings: TrainingSettings) -> "Requirements":
        """Count a module, which may be on the meta device."""
        parameters = [parameter.numel() * parameter.element_size() for parameter in module.parameters()]
        buffers = sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())
        states = _STATES[settings.optimizer] + (settings.momentum > 0) + settings.centered
        states += settings.average_decay is not None
        return cls(
            update_bytes=2 * max(parameters, default=0),
            weights_bytes=sum(parameters) + buffers,
            state_bytes=(1 + states) * sum(parameters) + buffers,
        )

    def check(self, room: Room) -> None:
        """Raise MemoryLimitError where the network can never run in this room, HostMemoryError where not now."""
        bound = "its memory_limit" if room.limited else "the budget"
        if self.update_bytes > room.device_bytes:
            needed, device = compared(self.update_bytes, room.device_bytes)
            raise MemoryLimitError(
                f"the network needs at least {needed} of device memory, more than {bound} of {device}",
                detail="So much is its largest parameter with its gradient, which are on the device together.",
                hint=_hint(room),
            )
        if self.state_bytes > room.device_bytes + room.host_pool_bytes:
            raise MemoryLimitError(
                f"the network's parameters and optimizer state have {size(self.state_bytes)}, more than {bound} of "
                f"{size(room.device_bytes)} and the host pool of {size(room.host_pool_bytes)} together",
                detail="What is not on the device between two iterations is in the host pool.",
                hint=_hint(room, "or a larger host pool (TENSILE_HOST_POOL_BYTES)"),
            )
        if self.weights_bytes > room.host_bytes:
            weights, host = compared(self.weights_bytes, room.host_bytes)
            raise MemoryLimitError(
                f"the network's weights have {weights}, more than the {host} of host memory",
                hint="Use a smaller network, or a machine or container with more memory.",
            )
        if self.weights_bytes > room.free_bytes:
            weights, free = compared(self.weights_bytes, room.free_bytes)
            raise HostMemoryError(
                f"the network's weights have {weights}, and {free} of host memory are free now",
                hint="Wait until other jobs have ended, use a smaller network, or give the machine more memory.",
            )


def _hint(room: Room, also: str = "") -> str:
    raise_it = "raise memory_limit" if room.limited else "give the controller a larger budget (TENSILE_BUDGET_BYTES)"
    return f"Use a smaller network, or {raise_it}{' ' + also if also else ''}."
