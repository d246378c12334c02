"""Draws what a plan does in one iteration: memory by kind over time, and where each tensor is.

The upper half stacks the bytes on the device by kind of tensor, from operator to operator. Above it stand the memory
that the same iteration needs without planning, and the budget. The lower half has a row for each of the largest
tensors: full while the tensor is on the device, a thin line while it is away, with its copies, and marks where an
operator makes it again. Time is that of the operators; it leaves out waits, which a trace shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from indb_tensile.monitor.svg_drawing import CURVES, Drawing, Theme, nice_ticks
from indb_tensile.scheduler.graph import Role, Stage, StepGraph, TensorId
from indb_tensile.scheduler.memory.peak import LIVENESS, load
from indb_tensile.scheduler.memory.residency import Interval, intervals
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import captured_order, effective, effective_latency
from indb_tensile.sizes import size

_WIDTH, _LEFT, _RIGHT = 1100, 118, 24
_TOP, _STACK_HEIGHT = 74, 250
_ROW_PX, _ROWS = 9, 48  # more tensors than rows are summed up in words: small ones take no memory that one could see
_STAGES = {Stage.UPLOAD: "upload", Stage.FORWARD: "forward", Stage.BACKWARD: "backward", Stage.OPTIMIZER: "optimizer"}

# Kinds from the bottom of the stack up: what stays, then what comes and goes.
_KINDS: tuple[tuple[str, Role | None, str], ...] = (
    ("parameters", Role.PARAMETER, CURVES[0]),
    ("optimizer state", Role.OPTIMIZER_STATE, CURVES[4]),
    ("buffers", Role.BUFFER, CURVES[3]),
    ("batch", Role.INPUT, CURVES[1]),
    ("activations and gradients", Role.ACTIVATION, CURVES[2]),
    ("workspaces", None, "#8a94a3"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A training step and a plan for it. `limit_bytes` is the memory that the job may use, if that is known.

    `limit_name` is what the picture calls it.
    """

    title: str
    graph: StepGraph
    latency_ns: tuple[int, ...]
    plan: Plan
    limit_bytes: int | None = None
    limit_name: str = "budget"


def plan_picture(step: PlannedStep, theme: Theme = Theme.AUTO) -> str:
    """Return the picture of a plan as SVG."""
    picture = _Picture(step, theme)
    picture.draw_stack()
    picture.draw_tensors()
    return picture.drawing.svg()


class _Picture:
    def __init__(self, step: PlannedStep, theme: Theme) -> None:
        cache = PlanCache()
        self._step = step
        self._graph = effective(step.graph, step.plan, cache)
        self._count = len(self._graph.operators)
        self._intervals = intervals(step.graph, step.plan, cache)
        latency_ns = effective_latency(step.latency_ns, step.plan)
        even = max(1, sum(latency_ns) // (200 * self._count))  # so that each operator has a width
        self._at = (0, *accumulate(max(ns, even) for ns in latency_ns))
        self._loads = load(step.graph, step.plan, cache)
        self._unplanned = load(step.graph, LIVENESS, cache)
        self._unplanned_ns = (0, *accumulate(max(ns, even) for ns in step.latency_ns))
        self._rows = self._largest_tensors()
        self._swaps: dict[TensorId, list[Swap]] = {}
        for swap in step.plan.swaps:
            self._swaps.setdefault(swap.tensor, []).append(swap)
        height = _TOP + _STACK_HEIGHT + 96 + _ROW_PX * len(self._rows) + 40
        self.drawing = Drawing(_WIDTH, height, title=step.title, text=self._words(), theme=theme)

    def _words(self) -> str:
        """Return the picture in a sentence."""
        plan = self._step.plan
        peak_bytes, unplanned_bytes = max(self._loads), max(self._unplanned)
        return (
            f"At most {size(peak_bytes)} are on the device, {size(unplanned_bytes)} without planning; "
            f"{_counted(len(plan.swaps), 'swap')} and {_counted(plan.recomputed, 'recomputation')} in each iteration."
        )

    # The stack of memory ------------------------------------------------------------------------------------------

    def draw_stack(self) -> None:
        """Draw memory by kind over time, with its axes, lines and legend."""
        draw, step = self.drawing, self._step
        draw.text(_LEFT, 24, step.title, size=16)
        draw.text(_LEFT, 44, self._words(), colour="quiet")
        top_bytes = self._top_bytes()
        for value in _size_ticks(top_bytes):
            y = self._y(value, top_bytes)
            draw.line([(_LEFT, y), (_WIDTH - _RIGHT, y)], "grid", width=1)
            draw.text(_LEFT - 8, y + 4, size(round(value)), colour="quiet", anchor="end")
        below = [0] * self._count
        for name, role, colour in _KINDS:
            own = self._bytes_of(role)
            if any(own):
                above = [low + more for low, more in zip(below, own, strict=True)]
                corners = [*self._steps(above, top_bytes), *reversed(self._steps(below, top_bytes))]
                draw.area(corners, colour, note=f"{name}: at most {size(max(own))}")
                below = above
        unplanned = self._steps(self._unplanned, top_bytes, self._scaled_unplanned())
        if max(self._unplanned) > max(self._loads):
            draw.line(unplanned, "quiet", dash="3 3", note="without planning")
        self._draw_limit(top_bytes)
        self._draw_stages()
        self._draw_legend()

    def _top_bytes(self) -> int:
        """Return the highest value of the axis: a limit far above everything would flatten the picture.

        At least one byte, since a step without tensors uses none.
        """
        used = max(*self._loads, *self._unplanned)
        limit = self._step.limit_bytes or 0
        return max(1, max(used, limit if limit < 2 * used else 0) * 21 // 20)

    def _draw_limit(self, top_bytes: int) -> None:
        limit = self._step.limit_bytes
        if limit is None:
            return
        if limit > top_bytes:
            text = f"{self._step.limit_name} {size(limit)}, above the picture"
            self.drawing.text(_WIDTH - _RIGHT, _TOP - 8, text, colour="limit", anchor="end")
            return
        y = self._y(limit, top_bytes)
        self.drawing.line(
            [(_LEFT, y), (_WIDTH - _RIGHT, y)], "limit", width=2, note=f"{self._step.limit_name} {size(limit)}"
        )
        self.drawing.text(
            _WIDTH - _RIGHT, y - 5, f"{self._step.limit_name} {size(limit)}", colour="limit", anchor="end"
        )

    def _bytes_of(self, role: Role | None) -> list[int]:
        """Return the bytes of a kind on the device at each operator."""
        change = [0] * (2 * self._count + 1)
        for interval in self._intervals:
            if (None if interval.tensor is None else self._graph.tensors[interval.tensor].role) is role:
                change[interval.first] += interval.size_bytes
                change[interval.stop] -= interval.size_bytes
        twice = list(accumulate(change))
        return [twice[k] + twice[k + self._count] for k in range(self._count)]

    def _scaled_unplanned(self) -> list[float]:
        """Return the times of the captured operators, stretched to the width: recomputation makes the plan longer."""
        share = self._at[-1] / self._unplanned_ns[-1]
        return [ns * share for ns in self._unplanned_ns]

    def _steps(
        self, values: Sequence[int], top_bytes: int, at_ns: Sequence[float] | None = None
    ) -> list[tuple[float, float]]:
        """Return the corners of a line that holds each value for its operator."""
        moments = self._at if at_ns is None else at_ns
        corners = []
        for k, value in enumerate(values):
            y = self._y(value, top_bytes)
            corners += [(self._x(moments[k]), y), (self._x(moments[k + 1]), y)]
        return corners

    def _x(self, at_ns: float) -> float:
        return _LEFT + at_ns / self._at[-1] * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, size_bytes: float, top_bytes: int) -> float:
        return _TOP + _STACK_HEIGHT * (1 - size_bytes / top_bytes)

    def _draw_stages(self) -> None:
        """Name the time axis: milliseconds, and the parts of the step."""
        draw, base = self.drawing, _TOP + _STACK_HEIGHT
        for value in nice_ticks(0, self._at[-1] / 1e6, 8):
            draw.text(self._x(value * 1e6), base + 16, f"{value:g}", colour="quiet", anchor="middle")
        draw.text(_LEFT - 8, base + 16, "ms", colour="quiet", anchor="end")
        begin = 0
        stages = [operator.stage for operator in self._graph.operators]
        for k in range(1, self._count + 1):
            if k == self._count or stages[k] is not stages[begin]:
                left, right = self._x(self._at[begin]), self._x(self._at[k])
                draw.line([(left, base), (left, base + 24)], "grid", width=1)
                if right - left > 54:
                    draw.text((left + right) / 2, base + 34, _STAGES[stages[begin]], colour="quiet", anchor="middle")
                begin = k

    def _draw_legend(self) -> None:
        x, y = float(_LEFT), _TOP + _STACK_HEIGHT + 58
        shown = [(name, colour) for name, role, colour in _KINDS if any(self._bytes_of(role))]
        for name, colour in shown:
            self.drawing.rect(x, y - 10, 12, 12, colour)
            self.drawing.text(x + 17, y, name)
            x += 17 + 6.4 * len(name) + 20
        if max(self._unplanned) > max(self._loads):
            self.drawing.line([(x, y - 4), (x + 22, y - 4)], "quiet", dash="3 3")
            self.drawing.text(x + 27, y, "without planning")

    # The tensors ----------------------------------------------------------------------------------------------------

    def _largest_tensors(self) -> list[TensorId]:
        """Return the largest tensors, before them those that the plan moves, in the order of time."""
        moved = {swap.tensor for swap in self._step.plan.swaps} | self._made_again()
        first: dict[TensorId, int] = {}
        for interval in self._intervals:
            if interval.tensor is not None:
                first[interval.tensor] = min(first.get(interval.tensor, self._count), interval.first)
        sizes = {tensor: self._graph.tensors[tensor].size_bytes for tensor in first}
        chosen = sorted(first, key=lambda t: (t not in moved, -sizes[t], t))[:_ROWS]
        return sorted(chosen, key=lambda t: (not self._graph.tensors[t].persistent, first[t], t))

    def _made_again(self) -> set[TensorId]:
        """Return the tensors that an operator writes when it runs again."""
        return {tensor for k in self._repeats() for tensor in self._graph.operators[k].writes}

    def _repeats(self) -> list[int]:
        """Return the positions at which an operator, or a part of one, runs again."""
        seen: set[tuple[int, int]] = set()
        again = []
        for position, execution in enumerate(self._step.plan.executions or captured_order(self._step.graph)):
            key = (execution.operator, execution.part)
            if key in seen:
                again.append(position)
            seen.add(key)
        return again

    def draw_tensors(self) -> None:
        """Draw a row for each of the largest tensors, and say what is left out."""
        draw, top = self.drawing, _TOP + _STACK_HEIGHT + 92
        held = {interval.tensor for interval in self._intervals if interval.tensor is not None}
        left_out = len(held) - len(self._rows)
        text = "on the device: full; away on the host: thin, with the copies out ▾ and back ▴; made again: ●"
        more = f"; {left_out} smaller tensors are left out" if left_out > 0 else ""
        draw.text(_LEFT, top - 10, f"Tensors, one a row. {text}{more}", colour="quiet")
        by_tensor: dict[TensorId, list[Interval]] = {}
        for interval in self._intervals:
            if interval.tensor is not None:
                by_tensor.setdefault(interval.tensor, []).append(interval)
        repeats = self._repeats()
        for row, tensor in enumerate(self._rows):
            self._draw_row(top + row * _ROW_PX, tensor, by_tensor.get(tensor, []), repeats)
        draw.line([(_LEFT, top - 4), (_LEFT, top + len(self._rows) * _ROW_PX + 2)], "grid", width=1)

    def _draw_row(self, y: float, tensor: TensorId, held: Sequence[Interval], repeats: Sequence[int]) -> None:
        about = self._graph.tensors[tensor]
        colour = next(colour for _, role, colour in _KINDS if role is about.role)
        note = f"{about.name}, {size(about.size_bytes)}"
        for swap in self._swaps.get(tensor, ()):
            for begin, end in self._away(swap):
                self.drawing.line([(self._x(begin), y + 3), (self._x(end), y + 3)], colour, width=1, dash="2 3")
        for interval in held:
            for begin, end in self._spans(interval):
                self.drawing.rect(self._x(begin), y, self._x(end) - self._x(begin), _ROW_PX - 3, colour, note=note)
        if about.persistent or self._swaps.get(tensor):
            self.drawing.text(_LEFT - 8, y + 7, _shortened(about.name), colour="quiet", size=8, anchor="end")
        for swap in self._swaps.get(tensor, ()):
            if swap.copies:
                self._mark(y, self._at[swap.out_after + 1], "▾", f"{note}: copy to the host")
            self._mark(y, self._at[swap.in_at], "▴", f"{note}: copy to the device")
        for k in repeats:
            if tensor in self._graph.operators[k].writes:
                self._mark(y, self._at[k], "●", f"{note}: made again")

    def _spans(self, interval: Interval) -> list[tuple[int, int]]:
        """Return the times of an interval, which may cross the end of the iteration."""
        if interval.stop <= self._count:
            return [(self._at[interval.first], self._at[interval.stop])]
        rest = min(interval.stop - self._count, self._count)
        return [(self._at[interval.first], self._at[-1]), (0, self._at[rest])]

    def _away(self, swap: Swap) -> list[tuple[int, int]]:
        """Return the times in which a swapped tensor is away, which may cross the end of the iteration."""
        leaves, returns = self._at[swap.free_at % self._count], self._at[swap.in_at % self._count]
        return [(leaves, returns)] if leaves < returns else [(leaves, self._at[-1]), (0, returns)]

    def _mark(self, y: float, at_ns: float, sign: str, note: str) -> None:
        x = self._x(at_ns)
        match sign:
            case "▾":
                corners = [(x - 4, y - 1), (x + 4, y - 1), (x, y + 6)]
            case "▴":
                corners = [(x - 4, y + 7), (x + 4, y + 7), (x, y)]
            case _:
                corners = [(x - 3, y + 3), (x, y), (x + 3, y + 3), (x, y + 6)]
        self.drawing.area(corners, "mark", note=note)


def _size_ticks(top_bytes: int) -> list[float]:
    """Return round sizes in the unit of the largest."""
    unit = 1024 ** min(3, max(0, (top_bytes.bit_length() - 1) // 10))
    return [tick * unit for tick in nice_ticks(0, top_bytes / unit, 5)]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _shortened(name: str) -> str:
    return name if len(name) <= 22 else f"…{name[-21:]}"
