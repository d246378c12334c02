"""Runs a job's steps under its plans: one iteration per call, in the memory that the plan allows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns

import torch

from indb_tensile.device.device import Clock, Device, Ticket
from indb_tensile.device.round_member import RoundMember
from indb_tensile.errors import InvariantError
from indb_tensile.executor.capture.replay import INPUTS
from indb_tensile.executor.capture.step_capture import CapturedStep, StepKind, check_same_persistent
from indb_tensile.executor.latency.gpu_clock import EventClock
from indb_tensile.executor.latency.sampled_iterations import SampledIterations
from indb_tensile.executor.run.cuda_graphs import Graphs, learning_rate_tensor
from indb_tensile.executor.run.graph_cache import GraphCache
from indb_tensile.executor.run.host_results import HostResults, Results
from indb_tensile.executor.run.iteration_recorder import IterationRecorder
from indb_tensile.executor.run.iteration_sampler import IterationSampler
from indb_tensile.executor.run.operator_excess import OperatorExcess, OperatorExcesses
from indb_tensile.executor.run.operator_failure import naming_failed_operator
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.program import Program, bind, compile_program, empty_carried
from indb_tensile.executor.run.state import State
from indb_tensile.executor.run.state_moves import StateMover, uploaded_sizes
from indb_tensile.executor.run.trainer_lanes import Lanes
from indb_tensile.executor.run.upload_ahead import NextBatch, NextBatchPlace, NextBatchSource
from indb_tensile.executor.run.upload_buffers import Room, UploadBuffers
from indb_tensile.scheduler.memory.next_batch import batch_tensors, buffer_bytes
from indb_tensile.scheduler.plan import Plan


class Runner:
    """One job on one device. Nothing is on the device before `adopt`, while the job is parked, and after `close`."""

    def __init__(
        self,
        device: Device,
        state: State,
        steps: tuple[CapturedStep, ...],
        *,
        sample_every: int = 16,
        sample_after_ns: int | None = None,
        clock: Clock = perf_counter_ns,
        placer: Placer | None = None,
        operator_clock: EventClock | None = None,
        check: Callable[[], None] | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        """Take the job's `steps` in the order of the plans: the training step first.

        `placer` places the tensors at planned addresses; without a placer tensors are in ordinary memory.
        `operator_clock` times operators that run asynchronously to the host; without it `clock` does. `check` raises
        the device's own error when torch reports an error. With `graphs` iterations that are not timed are recorded
        and launched as one graph, if the plan allows it.

        Every `sample_every`-th training iteration is timed, and so is an iteration that starts `sample_after_ns` or
        more after the last timed one. Plans with long iterations run only few of them, and timing costs long
        iterations almost nothing.
        """
        check_same_persistent(steps)
        _check_sized(steps)
        self._device = device
        self._state = state
        self._steps = steps
        self._clock = clock
        self._operator_clock = operator_clock
        self._check = check
        # On a GPU always in memory, so that recording iterations changes no bit.
        in_memory = graphs is not None or state.device.type == "cuda"
        self._rate = learning_rate_tensor(state.device) if in_memory else None
        self._landing = HostResults(pinned=state.device.type == "cuda", reused=graphs is not None)
        self._sampler = IterationSampler(
            every=sample_every, after_ns=sample_after_ns, clock=clock, operator_clock=operator_clock
        )
        self._lanes = state.lanes = Lanes(device)
        self._placer = placer or Placer()
        self._excesses = OperatorExcesses(self._placer)
        self._repeats = (
            None if graphs is None else GraphCache(graphs, device, self._lanes, state, self._placer, clock)
        )
        self._uploads = UploadBuffers(device, _batch_sizes(steps))
        self._next = NextBatch(device, self._lanes, self._uploads, state.device, self._may_upload_ahead)
        self._residency = StateMover(device, self._lanes, state, self._placer, self._uploads)
        self._programs: tuple[Program, ...] = ()
        self._current: Program | None = None
        self._carried: list[Ticket | None] = []
        self._grant_bytes: int | None = None
        self._member: RoundMember | None = None
        self.recorder: IterationRecorder | None = None  # records every whole training iteration from now on
        self.generation = 0

    def adopt(
        self,
        plans: tuple[Plan, ...],
        generation: int,
        grant_bytes: int | None = None,
        member: RoundMember | None = None,
        *,
        steps: tuple[CapturedStep, ...] | None = None,
    ) -> None:
        """Follow these plans, one per step, and move the state to the first step's home at once.

        `steps` replaces the steps, if their workspaces were corrected since the last plans. As a `member` of a round
        the training step passes gates, and has the memory beyond its base only while it needs it. A job leaves its
        round when it adopts other plans, parks or closes.

        On return, memory that only the old plans needed has been freed. Call this between iterations. Raises
        InvariantError for a plan that breaks its rules; the old plans then stay in use.
        """
        steps = self._steps if steps is None else steps
        if len(plans) != len(steps):
            raise InvariantError(f"{len(plans)} plans were given for {len(steps)} steps")
        located = self._placer.position is not None
        gated = frozenset[int]() if member is None else member.boundaries
        programs = tuple(
            compile_program(
                s, plan, located=located, on_host=self._device.is_host, gated=frozenset() if number else gated
            )
            for number, (s, plan) in enumerate(zip(steps, plans, strict=True))
        )
        self._steps, self._grant_bytes = steps, grant_bytes
        self._stop_following()
        self._placer.adopt(programs, grant_bytes, None if member is None else member.seat.part.base_bytes)
        self._member = member
        self._residency.exchange(self._programs, programs)
        self._programs, self.generation = programs, generation
        self._sampler.restart()
        self._enter(programs[0])
        if member is not None:
            member.join(self._placer.block_address)
        self._device.trim()
        self._device.reset_high_water()  # the peak of the old plans does not count for the new ones

    def relocate(self, steps: tuple[CapturedStep, ...]) -> None:
        """Follow the present plans with these steps, of which only the operators' allocation scripts are new."""
        plans, lent_bytes = tuple(program.plan for program in self._programs), self._next.lent_bytes
        self.adopt(plans, self.generation, self._grant_bytes, steps=steps)
        if lent_bytes:
            self.lend_for_batch(lent_bytes)

    def take_excesses(self) -> tuple[OperatorExcess, ...]:
        """Return the operators that used more memory than planned since the last call, each once."""
        return self._excesses.take()

    @property
    def unplaced_bytes(self) -> int:
        """The size of the present plans' block, if the device had no room for it in this job's regions; else 0."""
        return self._placer.unplaced_bytes

    def leave_round(self) -> int | None:
        """Leave the round, and return its number; None if the job is in none. No step can run before `adopt`.

        Call this between iterations: then nothing is in memory that the round has lent. A thread of this process
        plays the job's part until the round is over.
        """
        member, self._member = self._member, None
        if member is None:
            return None
        member.leave()
        return member.number

    def park(self) -> int:
        """Move everything on the device to the host pool, and return the bytes that the job then has in the pool.

        Call this between iterations. Until the next `adopt` no step can run, and the controller may take all memory
        of the device from this job. Raises DeviceMemoryError if the pool has no room. No step can run then either,
        but the state is whole, so it can be exported or closed.
        """
        self._stop_following()
        left, self._programs = self._programs, ()
        self._sampler.forget()
        self._carried = []
        host_bytes = self._residency.park(left)
        self._placer.close()
        self._device.trim()
        self._device.reset_high_water()
        return host_bytes

    def train(self, x: torch.Tensor, y: torch.Tensor, lr: float) -> torch.Tensor:
        """Run one iteration of the training step for this batch size, and return the loss, on the host."""
        program = self._program(StepKind.TRAINING, x)
        whole = program is self._programs[0]  # the last, smaller batch is not a sample of a full iteration
        timed = whole and (self._sampler.takes_next() or self.recorder is not None)
        (loss,) = self._run(program, x, y, lr, timed=timed)
        self._state.steps += 1
        self._sampler.note_end()
        return loss

    def evaluate(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and the model's outputs for a batch, on the host. The state does not change."""
        loss, outputs = self._run(self._program(StepKind.EVALUATION, x), x, y, 0.0, timed=False)
        return loss, outputs

    def measured(self) -> SampledIterations | None:
        """Return the summary of the samples since the last call, or None without samples.

        Restart the high-water mark.
        """
        if self._sampler.empty:
            return None
        peak_bytes = self._device.usage().high_water_bytes - self._next.lent_bytes  # of the plan
        self._device.reset_high_water()
        launched_ns = () if self._repeats is None else self._repeats.take_times(self._programs[0])
        return self._sampler.take_summary(launched_ns, peak_bytes, in_round=self._member is not None)

    def rooms(self, parts: tuple[torch.Tensor, ...], rows: int) -> tuple[Room, ...]:
        """Return two sets of tensors from which batches of this many rows of these parts are uploaded without a copy.

        A part that is not uploaded is None. The tensors are valid from the first `adopt` until `close`.
        """
        return self._uploads.rooms(INPUTS, parts, rows)

    def upload_ahead(self, source: NextBatchSource) -> None:
        """Upload each batch that `source` has ready while the previous batch is trained on, where the plan has room.

        `source` then has to return the tensors that the next call of `train` gets.
        """
        self._next.source = source

    def lend_for_batch(self, size_bytes: int) -> int:
        """Keep each next batch in this many bytes beside the plan's block, which the device already grants.

        0 gives them back. Returns the bytes that are in use for it now: 0 too if they cannot be used. The loan lasts
        until the job adopts other plans, parks or closes. Call this between iterations.
        """
        self._leave()
        self._next.lend(0)
        program, usage = self._programs[0], self._device.usage()
        needed_bytes = buffer_bytes(program.step.graph, batch_tensors(program.step.graph, INPUTS))
        usable = self._repeats is None and self._member is None and program.uploads_next.beside is not None
        fits = usable and needed_bytes <= min(size_bytes, usage.granted_bytes - usage.used_bytes)
        self._placer.keep_beside(needed_bytes if fits else 0)
        self._enter(program)
        self._next.lend(self._placer.beside_bytes)
        self._next.enter(program.step, self._next_batch_place(program))
        self._sampler.forget()  # iterations before the loan wait for their batches
        self._device.trim()
        self._device.reset_high_water()
        return self._next.lent_bytes

    @property
    def lent_for_batch(self) -> int:
        """The bytes beside the plan in which next batches are kept now."""
        return self._next.lent_bytes

    @property
    def uploaded_ahead(self) -> int:
        """The number of iterations whose batch was on the device, or on its way, when they began."""
        return self._next.taken

    def wait_until_read(self, number: int) -> None:
        """Wait until no upload reads this set of `rooms`. Call this between iterations."""
        self._uploads.wait_until_read(number)

    @property
    def launched(self) -> int:
        """The number of iterations that ran as one graph."""
        return 0 if self._repeats is None else self._repeats.launched

    def close(self, *, keeps_state: bool = True) -> None:
        """Free all memory of the device and the host pool. A state to keep is copied first and can be exported."""
        self._stop_following()
        self._residency.give_up(self._programs, keeps_state=keeps_state)
        self._placer.close()
        self._programs = ()

    def _program(self, kind: StepKind, x: torch.Tensor) -> Program:
        own = [p for p in self._programs if p.step.kind is kind and p.step.batch_size == x.shape[0]]
        for program in own:
            if len(own) == 1 or program.step.values[INPUTS[0]].shape == tuple(x.shape):
                return program
        known = [f"{s.kind} of {s.batch_size}" for s in self._steps]
        raise InvariantError(
            f"no {kind} step for a batch of {x.shape[0]} has a plan for rows of shape {tuple(x.shape[1:])}",
            detail=f"captured: {', '.join(known)}; plans adopted: {len(self._programs)}",
        )

    def _run(
        self, program: Program, x: torch.Tensor, y: torch.Tensor, lr: float, *, timed: bool
    ) -> tuple[torch.Tensor, ...]:
        if program is not self._current or self._state.changed:
            self._leave()
            self._enter(program)
        self._stage(program, (x, y))
        self._next.begin((x, y))
        rate = lr if self._rate is None else self._rate.fill_(lr)
        self._state.begin()
        with (
            naming_failed_operator(program, self._placer, self._check),
            self._excesses.noting(program),
            self._in_round(program),
        ):
            returned = None
            # The host takes part between two segments of an iteration in a round, so no graph can hold it as a whole.
            gated = self._member is not None and program is self._programs[0]
            if self._repeats is not None and not timed and not gated:
                returned = self._repeats.launch(
                    program,
                    self._carried,
                    lambda results: self._queue(program, rate, results),
                    lambda: self._landing.room(program.step),
                )
            if returned is None:
                returned = self._run_operators(program, rate, timed=timed)
        self._state.whole = True
        self._residency.finished(program)
        return returned

    @contextmanager
    def _in_round(self, program: Program) -> Iterator[None]:
        """Run an iteration of the training step as a member of the round; other steps pass no gates."""
        member = self._member if program is self._programs[0] else None
        if member is None:
            yield
            return
        member.enter()
        yield
        member.rest()

    def _stage(self, program: Program, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        for name, tensor in zip(INPUTS, batch, strict=True):
            shape = program.step.values[name]
            if tuple(tensor.shape) != shape.shape or tensor.dtype != shape.dtype:
                raise InvariantError(
                    f"batch {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                    f"the step was captured for {shape.dtype} of shape {shape.shape}"
                )
            self._residency.fill(program, name, tensor)

    def _run_operators(self, program: Program, rate: float | torch.Tensor, *, timed: bool) -> Results:
        """Run one iteration operator by operator."""
        returned, before = self._landing.room(program.step), None if self._repeats is None else self._placer.served
        start_ns = 0 if self._repeats is None else self._clock()
        self._queue(program, rate, returned, timed=timed)
        if self._state.device.type == "cuda":  # the host is ahead of the device, so wait for the results
            torch.cuda.current_stream(self._state.device).synchronize()
        if self._repeats is not None:
            self._repeats.ran(program, before, start_ns)
        return self._landing.take(returned)

    def _queue(self, program: Program, rate: float | torch.Tensor, returned: Results, *, timed: bool = False) -> None:
        training = program.step.kind is StepKind.TRAINING
        with torch.set_grad_enabled(training), self._placer.running(program):
            # Forward runs with gradients on, as in eager mode, because some kernels depend on the gradient mode. No
            # tensor here requires a gradient, so nothing is recorded.
            if timed:
                self._run_timed(program, rate, returned)
            else:
                assert program.plain is not None
                program.plain(rate, self._state.steps == 0, self._carried, returned, None, None)

    def _run_timed(self, program: Program, rate: float | torch.Tensor, returned: Results) -> None:
        assert program.timed is not None
        if self.recorder is not None:
            first, carried = self._state.steps == 0, self._carried
            self.recorder.run(
                program,
                self.generation,
                self._operator_clock,
                lambda iterate, times, stalls: iterate(rate, first, carried, returned, times, stalls),
            )
            return
        times, stalls = ([0] * (len(program.wiring.turns) + 1) for _ in range(2))
        stall_ns = program.timed(rate, self._state.steps == 0, self._carried, returned, times, stalls)
        self._sampler.add(program, times, stalls, stall_ns)

    def _stop_following(self) -> None:
        """Give up what depends on the present plans: the loan, the round and the recorded iterations."""
        self._leave()
        self._next.lend(0)
        self.leave_round()
        if self._repeats is not None:
            self._repeats.forget()

    def _leave(self) -> None:
        """Wait until no copy is under way, before another program is entered."""
        self._lanes.drain()
        self._next.leave()
        self._current = None

    def _may_upload_ahead(self) -> bool:
        """Return whether the present iteration runs operator by operator, as will the next.

        A recorded iteration uploads its batch itself.
        """
        program = self._current
        return program is not None and (self._repeats is None or self._repeats.is_refused(program))

    def _enter(self, program: Program) -> None:
        self._residency.go_home(program)
        if program.plain is None:
            clock = self._operator_clock or self._clock
            bind(
                program,
                self._state,
                self._device,
                self._lanes,
                clock,
                self._placer.position,
                rate_in_memory=self._rate is not None,
                note_read=self._uploads.note_read,
                gate=None if self._member is None else self._member.pass_boundary,
                next_batch=self._next,
            )
        self._next.enter(program.step, self._next_batch_place(program))
        self._carried = empty_carried(program)
        self._residency.start_outgoing(program, self._carried)
        self._state.changed = False
        self._current = program
        if self._repeats is not None:
            self._repeats.enter(program)

    def _next_batch_place(self, program: Program) -> NextBatchPlace | None:
        return None if self._member is not None else self._placer.next_batch_place(program)


def _batch_sizes(steps: tuple[CapturedStep, ...]) -> dict[str, int]:
    """Return the largest size of each part of a batch in any step that uploads it."""
    sizes: dict[str, int] = {}
    for step in steps:
        for name, size_bytes in uploaded_sizes(step):
            if name in INPUTS:
                sizes[name] = max(size_bytes, sizes.get(name, 0))
    return sizes


def _check_sized(steps: tuple[CapturedStep, ...]) -> None:
    for step in steps:
        if step.opaque:
            raise InvariantError(
                f"the size of {min(step.opaque)} has not been measured",
                hint="Calibrate the steps, or apply known measurements, before they run.",
            )
