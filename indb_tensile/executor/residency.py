"""Moves the state between the homes of two programs, and keeps the host buffers that plans need."""

import ctypes

import torch

from indb_tensile.executor.device import Device, Ticket
from indb_tensile.executor.lanes import Lanes
from indb_tensile.executor.program import Program
from indb_tensile.executor.state import State, host_bytes
from indb_tensile.executor.timeline import Timeline
from indb_tensile.scheduler.graph import TensorId


class Residency:
    """Where each storage of a state is. Between programs first everything goes out, then everything comes in."""

    def __init__(self, device: Device, lanes: Lanes, state: State) -> None:
        self._device = device
        self._lanes = lanes
        self._state = state
        self._wanted: frozenset[TensorId] = frozenset()  # persistent ids whose host buffer the plans need

    def exchange(self, old: tuple[Program, ...], new: tuple[Program, ...]) -> None:
        """Take the host buffers of new programs, after giving back those that only the old ones needed."""
        _free_buffers(self._device, old)
        count = len(self._state.storages)
        swapped = {t for program in new for t in program.timeline.swapped if t < count}
        self._wanted = frozenset(swapped)
        for tensor_id in sorted(set(self._state.host) & self._state.resident - self._wanted):
            self._drop_buffer(tensor_id)
        for tensor_id in sorted(self._wanted):
            self._buffer(tensor_id)
        for program in new:
            self._allocate(program)

    def go_home(self, timeline: Timeline) -> None:
        """Make exactly the program's home resident: the peak is never above the larger of both homes."""
        state = self._state
        self._send_out(sorted(state.resident - timeline.home))
        self._bring_in(sorted(timeline.home - state.resident))
        for tensor_id in sorted((timeline.copied & state.resident) - state.valid):
            self._copy_out(tensor_id)
        self._lanes.drain()

    def start_outgoing(self, timeline: Timeline, carried: list[Ticket | None]) -> None:
        """Start the copies out that a steady iteration finds under way."""
        for slot, gap in enumerate(timeline.outgoing):
            if gap.swap.copies and gap.tensor not in self._state.valid:
                carried[slot] = self._copy_out(gap.tensor)

    def finished(self, timeline: Timeline) -> None:
        """Note which host copies an iteration made and which it made stale."""
        self._state.valid -= timeline.invalidated
        self._state.valid |= timeline.validated

    def give_up(self, programs: tuple[Program, ...]) -> None:
        """Keep the state's bytes as plain host tensors; give back all memory of the device and the pool."""
        state = self._state
        for tensor_id, size_bytes in enumerate(state.sizes):
            self._retire(TensorId(tensor_id), size_bytes)
        for tensor_id in list(state.host):
            self._drop_buffer(tensor_id)
        _free_buffers(self._device, programs)
        used_bytes = self._device.usage().used_bytes
        if used_bytes:
            self._device.move(used_bytes, 0)

    def _retire(self, tensor_id: TensorId, size_bytes: int) -> None:
        state = self._state
        if tensor_id in state.resident:
            memory = torch.empty(0, dtype=torch.uint8).set_(state.storages[tensor_id])
            state.seeds[tensor_id] = memory.clone()
            state.storages[tensor_id].resize_(0)
            state.resident.discard(tensor_id)
        elif tensor_id in state.host:
            state.seeds[tensor_id] = host_bytes(state.host[tensor_id], size_bytes).clone()

    def _send_out(self, leaving: list[TensorId]) -> None:
        state = self._state
        for tensor_id in leaving:
            if tensor_id not in state.valid:
                self._copy_out(tensor_id)
        self._lanes.drain()
        for tensor_id in leaving:
            state.storages[tensor_id].resize_(0)
        state.resident.difference_update(leaving)
        freed_bytes = sum(state.sizes[t] for t in leaving)
        if freed_bytes:
            self._device.move(freed_bytes, 0)

    def _bring_in(self, coming: list[TensorId]) -> None:
        state = self._state
        taken_bytes = sum(state.sizes[t] for t in coming)
        if taken_bytes:
            self._device.move(0, taken_bytes)
        for tensor_id in coming:
            self._place(tensor_id)
            self._lanes.copy_in(state.storages[tensor_id].data_ptr(), state.host[tensor_id], state.sizes[tensor_id])
        self._lanes.drain()
        state.resident.update(coming)
        for tensor_id in coming:
            if tensor_id not in self._wanted:
                self._drop_buffer(tensor_id)

    def _place(self, tensor_id: TensorId) -> None:
        """Memory on the device, and the bytes to copy there in a host buffer."""
        state = self._state
        state.storages[tensor_id].resize_(state.sizes[tensor_id])
        self._buffer(tensor_id)

    def _seed(self, tensor_id: TensorId) -> None:
        state = self._state
        seed = state.seeds.pop(tensor_id, None)
        buffer, size_bytes = state.host[tensor_id], state.sizes[tensor_id]
        if seed is None:
            ctypes.memset(buffer, 0, size_bytes)
        else:
            ctypes.memmove(buffer, seed.data_ptr(), size_bytes)
        state.valid.add(tensor_id)

    def _copy_out(self, tensor_id: TensorId) -> Ticket:
        state = self._state
        self._buffer(tensor_id)
        state.valid.add(tensor_id)
        return self._lanes.copy_out(
            state.host[tensor_id], state.storages[tensor_id].data_ptr(), state.sizes[tensor_id]
        )

    def _buffer(self, tensor_id: TensorId) -> None:
        """A host buffer; a tensor that is nowhere else yet puts its bytes there."""
        state = self._state
        if tensor_id not in state.host:
            state.host[tensor_id] = self._device.host_allocate(state.sizes[tensor_id])
            if tensor_id not in state.resident:
                self._seed(tensor_id)

    def _drop_buffer(self, tensor_id: TensorId) -> None:
        self._device.host_free(self._state.host.pop(tensor_id))
        self._state.valid.discard(tensor_id)

    def _allocate(self, program: Program) -> None:
        count = len(self._state.storages)
        tensors = program.step.graph.tensors
        for tensor_id in sorted(t for t in program.timeline.swapped if t >= count):
            program.buffers[tensor_id] = self._device.host_allocate(tensors[tensor_id].size_bytes)
        for name in uploads(program):
            tensor_id = program.step.tensor_of[program.step.values[name].storage]
            program.staging[name] = self._device.host_allocate(tensors[tensor_id].size_bytes)
            if name in program.step.constants:
                dense = program.step.constants[name].detach().contiguous()
                ctypes.memmove(program.staging[name], dense.data_ptr(), dense.nbytes)


def uploads(program: Program) -> list[str]:
    """The values that an iteration copies from the host: the batch and constants of the model."""
    step = program.step
    names = [name for one in step.steps if one.kernel.stage == "upload" for name in one.kernel.results if name]
    return [name for name in names if step.values[name].storage in step.tensor_of]


def _free_buffers(device: Device, programs: tuple[Program, ...]) -> None:
    for program in programs:
        for buffer in (*program.buffers.values(), *program.staging.values()):
            device.host_free(buffer)
        program.buffers.clear()
        program.staging.clear()
