"""Computes the least memory that a network needs, on the meta device before anything is allocated.

Only memory that no plan can avoid is counted, so that no network is refused that could be trained. Three bounds
follow: the update of a parameter needs the whole parameter and its gradient on the device; everything that outlives
an iteration is on the device or in the pool of host memory; and the parameters are built in host memory first.
"""

from dataclasses import dataclass

from torch import nn

from indb_tensile.errors import HostMemoryError, MemoryLimitError
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.sizes import compared, size

# Optimizer state tensors per parameter.
_STATES = {"sgd": 0, "adam": 2, "adamw": 2, "adagrad": 1, "rmsprop": 1, "lion": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableMemory:
    """The memory that a job may use.

    `device_bytes` is the lesser of the budget and the job's own limit; `limited` is true if that is the job's limit.
    `host_bytes` is the whole memory of this machine or container, including swap space; `free_bytes` is free now.
    """

    device_bytes: int
    limited: bool
    host_pool_bytes: int
    host_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The least memory that a training needs.

    `update_bytes` is for the update of the largest parameter, `weights_bytes` for all parameters and buffers, and
    `state_bytes` for these together with the optimizer state.
    """

    update_bytes: int
    weights_bytes: int
    state_bytes: int

    @classmethod
    def of(cls, module: nn.Module, settings: TrainingSettings) -> "Requirements":
        """Compute the requirements of a module, which may be on the meta device."""
        parameters = [parameter.numel() * parameter.element_size() for parameter in module.parameters()]
        buffers = sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())
        states = _STATES[settings.optimizer] + (settings.momentum > 0) + settings.centered
        states += settings.average_decay is not None
        trained = [p.numel() * p.element_size() for p in module.parameters() if p.requires_grad]
        return cls(
            update_bytes=2 * max(trained, default=0),
            weights_bytes=sum(parameters) + buffers,
            state_bytes=sum(parameters) + states * sum(trained) + buffers,
        )

    def check(self, room: AvailableMemory) -> None:
        """Raise an error if the network does not fit.

        Raises MemoryLimitError if the network can never be trained in this room, HostMemoryError if it cannot now.
        """
        bound = "its memory_limit" if room.limited else "the budget"
        if self.update_bytes > room.device_bytes:
            needed, device = compared(self.update_bytes, room.device_bytes)
            raise MemoryLimitError(
                f"the network needs at least {needed} of device memory, more than {bound} of {device}",
                detail="Its largest parameter and the gradient of this parameter must be on the device together.",
                hint=_hint(room),
                needs_bytes=None if room.limited else self.update_bytes,
            )
        if self.state_bytes > room.device_bytes + room.host_pool_bytes:
            raise MemoryLimitError(
                f"the network's parameters and optimizer state take {size(self.state_bytes)}, more than {bound} of "
                f"{size(room.device_bytes)} and the host pool of {size(room.host_pool_bytes)} together",
                detail="Tensors that are not on the device between two iterations must be in the host pool.",
                hint=_hint(room, "or a larger host pool (TENSILE_HOST_POOL_BYTES)"),
                needs_bytes=None if room.limited else self.state_bytes - room.host_pool_bytes,
            )
        if self.weights_bytes > room.host_bytes:
            weights, host = compared(self.weights_bytes, room.host_bytes)
            raise MemoryLimitError(
                f"the network's weights take {weights}, more than the {host} of host memory",
                hint="Use a smaller network, or a machine or container with more memory.",
            )
        if self.weights_bytes > room.free_bytes:
            weights, free = compared(self.weights_bytes, room.free_bytes)
            raise HostMemoryError(
                f"the network's weights take {weights}, and {free} of host memory are free now",
                hint="Wait until other jobs have ended, use a smaller network, or give the machine more memory.",
            )


def _hint(room: AvailableMemory, addition: str = "") -> str:
    remedy = "raise memory_limit" if room.limited else "give the controller a larger budget (TENSILE_BUDGET_BYTES)"
    return f"Use a smaller network, or {remedy}{' ' + addition if addition else ''}."
