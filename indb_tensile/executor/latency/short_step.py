"""The short step, by which the contention of jobs with short steps is measured.

It is a training step of a small network, as a trainer runs it: its operators take some microseconds each, and its
batch is copied to the device beside them. On an emulated device these are copies by another thread, to which the step
hands over and for which it waits. docs/developer/sharing.md has the measurements that led to it.
"""

import os
from collections.abc import Callable

import torch
from torch import nn

from indb_tensile.device.backend import EMULATED
from indb_tensile.device.device import REGION_BYTES, EmulatedDevice
from indb_tensile.device.ledger import Ledger

# A step of about 1.5 ms on one core, like those of the small networks of `tensile bench share`.
_INPUTS, _WIDTH, _ROWS = 32, 512, 32
_LINK_BYTES_PER_S = 12_000_000_000  # so fast that the batch's copies take no time beside the hand-over
_SPACE_BYTES = 4 * REGION_BYTES

_kept: list[object] = []  # an emulated device, for as long as the process lives


def short_step(device: str, place: torch.device) -> Callable[[], None]:
    """Return a training step of a small network on this device, with the copies of its batch."""
    layers = nn.Linear(_INPUTS, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1)
    network = nn.Sequential(*layers).to(place)
    host = [torch.randn(_ROWS, columns) for columns in (_INPUTS, 1)]
    batch, labels = parts = [part.to(place) for part in host]
    loss = nn.MSELoss()
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    upload = _emulated_upload([part.nbytes for part in host]) if device == EMULATED else _upload(host, parts)

    def train() -> None:
        upload()
        optimizer.zero_grad()
        loss(network(batch), labels).backward()
        optimizer.step()

    return train


def _upload(host: list[torch.Tensor], parts: list[torch.Tensor]) -> Callable[[], None]:
    """Return a function that copies the parts of a batch to a GPU. On the processor there is nothing to copy."""
    if parts[0].device.type == "cpu":
        return lambda: None
    pinned = [part.pin_memory() for part in host]

    def copy() -> None:
        for part, source in zip(parts, pinned, strict=True):
            part.copy_(source, non_blocking=True)

    return copy


def _emulated_upload(sizes_bytes: list[int]) -> Callable[[], None]:
    """Return a function that copies so many bytes of each part of a batch on the lane of an emulated device."""
    rates = (_LINK_BYTES_PER_S, _LINK_BYTES_PER_S)
    ledger = Ledger.create(_SPACE_BYTES, REGION_BYTES, *rates, host_bytes=_SPACE_BYTES)
    slot, epoch = ledger.claim_slot(os.getpid())
    ledger.grant(slot, _SPACE_BYTES)
    device = EmulatedDevice(ledger.fd, slot, epoch, _SPACE_BYTES)
    _kept.extend((ledger, device))
    copies = [(device.allocate(size), device.host_allocate(size), size) for size in sizes_bytes]

    def copy() -> None:
        tickets = [device.copy_in(address, buffer, size) for address, buffer, size in copies]
        for ticket in tickets:
            device.wait(ticket)

    return copy
