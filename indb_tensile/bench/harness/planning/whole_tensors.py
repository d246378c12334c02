"""Compute a lower bound of the peak of every plan by a mixed-integer program in which large tensors move whole.

It checks scheduler/judges/peak_bound.py independently, and is higher where a step has few large tensors: that bound
looks at one moment at a time and allows fractions of tensors. This program has all moments at once and is solved with
HiGHS, so it suits small graphs: the network of two levels in docs/results/planning.md takes minutes.

*Events* are the fixed operators (judges/bound_moments.py) that access a large tensor, in their captured order. A
*value* is what one operator writes to a large tensor; what the iteration finds there is a value, too. Between an
event's start and the next event's start are the event itself and the *pause* after it, in which smaller operators,
movable operators and re-runs run, or the iteration waits. For each value and event the program decides whether the
value is valid on the device, how many of its bytes the lanes carry while the event runs and in the pause, and whether
the operator that wrote the value runs again in the pause.

Every plan that the checker accepts and whose iterations take at most `iteration_ns` gives a solution whose objective
is at most the plan's peak, so the program's optimum, and each bound of it that the solver proves, is a lower bound.
The following is left out or made cheaper, which only lowers the optimum:

- Small tensors (`_LARGE_PART`) take memory only while an operator accesses them, and their copies and re-runs cost
  nothing. Uploads do not occupy their lane.
- In a pause, memory is free. What a re-run needs must be on the device at some time of its pause, no longer.
- A value that runs again may use a host copy that was made before. A host copy is never outdated.
- The state that the previous iteration left may be on the device or on the host, whichever is better.
- Movable operators may lengthen any pause, all at once.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import floor, inf

import numpy as np

from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.judges.bound_moments import Moments
from indb_tensile.scheduler.link import Link

_LARGEST = 100.0  # Bytes are counted in units of which the largest tensor has this many: the solver's tolerances are
# absolute, so its numbers must be neither tiny nor huge.
_SURE = 1 - 1e-4  # a factor below 1 that covers the solver's tolerances
_ROUNDING_NS = 0.01  # for each tensor: the simulator ends a copy within a thousandth of a nanosecond
_LARGE_PART = 8  # A tensor is large from this part of the largest tensor on. More values make the program harder.

Term = tuple[int, float]  # a column and its coefficient


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBound:
    """What the solver proved in its time: no plan's peak is below `least_bytes`."""

    least_bytes: int
    optimal: bool  # whether the solver ended before its time
    events: int
    values: int


def program_bound(
    graph: StepGraph, latency_ns: Sequence[int], link: Link, iteration_ns: int, *, limit_s: float
) -> ProgramBound:
    """Return the bound that HiGHS proves within `limit_s` seconds. It is 0 for a graph without events."""
    moments = Moments(graph, latency_ns, link)
    program = _Program(moments, iteration_ns)
    if not program.events:
        return ProgramBound(least_bytes=0, optimal=True, events=0, values=0)
    proven, optimal = program.rows.solve(program.peak, limit_s)
    return ProgramBound(
        least_bytes=max(0, floor(proven * program.unit_bytes * _SURE)),
        optimal=optimal,
        events=len(program.events),
        values=len(program.values),
    )


@dataclass(slots=True, kw_only=True)
class _Value:
    """What `writer` writes to the tensor, -1 for what the iteration finds there. Events are given by number."""

    tensor: int
    size: float  # in the program's unit
    first: int  # the event from which the value exists
    writer: int
    in_place: bool  # whether the writer reads the tensor's previous value
    again: bool  # whether the writer can run again
    reads: list[int] = field(default_factory=list)
    over: int  # the event that overwrites the value, or the number of events
    until: int = 0  # the last event at which the value can be of use


class _Rows:
    """The columns and rows of a mixed-integer program."""

    def __init__(self) -> None:
        self._bounds: list[tuple[float, float]] = []
        self._whole: list[int] = []
        self._entries: list[tuple[int, int, float]] = []
        self._limits: list[tuple[float, float]] = []

    def column(self, low: float = 0.0, high: float = 1.0, *, whole: bool = False) -> int:
        """Add a column and return its number."""
        self._bounds.append((low, high))
        self._whole.append(int(whole))
        return len(self._bounds) - 1

    def at_most(self, terms: Sequence[Term], most: float) -> None:
        """Add the row: the sum of the terms is at most this."""
        self._entries += [(len(self._limits), column, factor) for column, factor in terms]
        self._limits.append((-inf, most))

    def solve(self, objective: int, limit_s: float) -> tuple[float, bool]:
        """Return the proven lower bound of this column, and whether it is the optimum."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_matrix

        rows, columns, factors = (np.array(part) for part in zip(*self._entries, strict=True))
        matrix = coo_matrix((factors, (rows, columns)), shape=(len(self._limits), len(self._bounds)))
        cost = np.zeros(len(self._bounds))
        cost[objective] = 1.0
        low, high = np.array(self._bounds).T
        result = milp(
            cost,
            constraints=LinearConstraint(matrix.tocsr(), *np.array(self._limits).T),
            bounds=Bounds(low, high),
            integrality=np.array(self._whole),
            options={"time_limit": limit_s},
        )
        proven = result.mip_dual_bound
        return (0.0 if proven is None else float(proven)), result.status == 0


class _Program:
    """The program of one graph: its events, its values and its rows."""

    def __init__(self, moments: Moments, iteration_ns: int) -> None:
        self._moments, self._graph = moments, moments.graph
        largest_bytes = max((t.size_bytes for t in self._graph.tensors), default=1)
        self._least_bytes, self.unit_bytes = largest_bytes // _LARGE_PART, largest_bytes / _LARGEST
        self.rows = _Rows()
        self.peak = self.rows.column(0.0, inf)
        self.events = [k for k in np.flatnonzero(moments.fixed).tolist() if self._large(k)]
        self.values: list[_Value] = []
        self._read_by: dict[int, list[int]] = defaultdict(list)  # by operator, the numbers of the values it reads
        self._written_by: dict[int, list[int]] = defaultdict(list)
        self._trace()
        self._extend()
        slack_ns = iteration_ns + 1 + _ROUNDING_NS * len(self._graph.tensors) - float(moments.cost_ns.sum())
        movable_ns = float(moments.cost_ns[~moments.fixed].sum())
        count = len(self.events)
        self._extra_ns = [self.rows.column(0.0, inf) for _ in range(count)]  # by pause, beyond its fixed operators
        self.rows.at_most([(column, 1.0) for column in self._extra_ns], max(0.0, slack_ns) + movable_ns)
        self._again = self._reruns(max(0.0, slack_ns))
        self._memory: list[list[Term]] = [[] for _ in range(count)]
        self._lanes: dict[bool, list[tuple[list[Term], list[Term]]]] = {
            inward: [([], []) for _ in range(count)] for inward in (True, False)
        }
        self._valid: dict[tuple[int, int], int] = {}
        self._arrives: dict[tuple[int, int], int] = {}
        for number in range(len(self.values)):
            self._carry(number)
        self._feed()
        self._bound_events()

    def _large(self, k: int) -> list[int]:
        """Return the large tensors that this operator accesses."""
        operator = self._graph.operators[k]
        return [
            t
            for t in sorted({*operator.reads, *operator.writes})
            if self._graph.tensors[t].size_bytes >= self._least_bytes
        ]

    def _trace(self) -> None:
        """Collect the values, and the events that read each of them."""
        present: dict[int, int] = {}
        for event, k in enumerate(self.events):
            operator = self._graph.operators[k]
            reads, writes = {*operator.reads}, {*operator.writes}
            for t in self._large(k):
                if t in reads:
                    if t not in present:
                        present[t] = self._add(t, 0, -1, in_place=False)
                    self.values[present[t]].reads.append(event)
                    self._read_by[k].append(present[t])
            for t in self._large(k):
                if t in writes:
                    if t in present:
                        self.values[present[t]].over = event
                    present[t] = self._add(t, event, k, in_place=t in reads)
                    self._written_by[k].append(present[t])

    def _add(self, tensor: int, first: int, writer: int, *, in_place: bool) -> int:
        again = writer >= 0 and not in_place and bool(self._moments.again[writer])
        size = self._graph.tensors[tensor].size_bytes / self.unit_bytes
        self.values.append(
            _Value(
                tensor=tensor,
                size=size,
                first=first,
                writer=writer,
                in_place=in_place,
                again=again,
                over=len(self.events),
            )
        )
        return len(self.values) - 1

    def _extend(self) -> None:
        """Find how long each value can be of use: to its readers, and to what can run again from it."""
        last = len(self.events) - 1
        for value in self.values:
            stays = value.over > last and self._graph.tensors[value.tensor].persistent
            value.until = last if stays else max(value.reads, default=value.first)
        for k in reversed(self.events):
            if self._moments.again[k] and self._written_by[k]:
                until = max(self.values[number].until for number in self._written_by[k])
                for number in self._read_by[k]:
                    value = self.values[number]
                    value.until = max(value.until, min(until, value.over, last))

    def _reruns(self, slack_ns: float) -> dict[tuple[int, int], int]:
        """Return a column for each operator and pause in which it may run again."""
        columns: dict[tuple[int, int], int] = {}
        in_pause: dict[int, list[Term]] = defaultdict(list)
        for event, k in enumerate(self.events):
            made = [self.values[number] for number in self._written_by[k] if self.values[number].again]
            for pause in range(event + 1, max((value.until for value in made), default=0)):
                columns[k, pause] = self.rows.column(whole=True)
                in_pause[pause].append((columns[k, pause], float(self._moments.cost_ns[k])))
        self.rows.at_most([term for terms in in_pause.values() for term in terms], slack_ns)
        for pause, terms in in_pause.items():
            self.rows.at_most([*terms, (self._extra_ns[pause], -1.0)], 0.0)
        return columns

    def _carry(self, number: int) -> None:
        """Add the columns and rows of one value: where it is, and what the lanes carry of it."""
        value, rows = self.values[number], self.rows
        size = value.size
        needed = {*value.reads} | ({value.first} if value.writer >= 0 else set())
        for event in range(value.first, value.until + 1):
            self._valid[number, event] = rows.column(float(event in needed), whole=True)
        arrived: list[Term] = []
        copied_in: list[Term] = []
        copied_out: list[Term] = []
        for event in range(value.first, value.until + 1):
            held = rows.column(whole=True)
            taken = 0.0 if value.in_place and event == value.first else size
            self._memory[event].append((held, taken))
            # what has been copied in but has not arrived is on the device, and so is what is copied in now
            rows.at_most([(held, -1.0), *copied_in, *((c, -1.0) for c, _ in arrived)], 0.0)
            if event == value.until:
                rows.at_most([(self._valid[number, event], 1.0), (held, -1.0)], 0.0)
                break
            during_in, pause_in = rows.column(0.0, size), rows.column(0.0, size)
            rows.at_most([(self._valid[number, event], 1.0), (during_in, 1 / size), (held, -1.0)], 0.0)
            self._lanes[True][event][0].append((during_in, 1.0))
            self._lanes[True][event][1].append((pause_in, 1.0))
            copied_in += [(during_in, 1 / size), (pause_in, 1 / size)]
            self._arrives[number, event] = rows.column(whole=True)
            arrived.append((self._arrives[number, event], 1.0))
            rows.at_most([*arrived, *((c, -factor) for c, factor in copied_in)], 0.0)
            again = self._again.get((value.writer, event)) if value.again else None
            made = [self._valid[number, event], *([] if again is None else [again])]
            sources = [*made, self._arrives[number, event]]
            rows.at_most([(self._valid[number, event + 1], 1.0), *((c, -1.0) for c in sources)], 0.0)
            if value.writer >= 0:  # a value that has just arrived is on the host already
                copied_out = self._copy_out(number, event, made, copied_out)

    def _copy_out(self, number: int, event: int, sources: Sequence[int], copied: list[Term]) -> list[Term]:
        """Add what the lane to the host carries of a value at one event. Return all that it has carried."""
        value, rows = self.values[number], self.rows
        size = value.size
        during, pause = rows.column(0.0, size if event > value.first else 0.0), rows.column(0.0, size)
        rows.at_most([(during, 1.0), (self._valid[number, event], -size)], 0.0)
        rows.at_most([(pause, 1.0), *((c, -size) for c in sources)], 0.0)
        self._lanes[False][event][0].append((during, 1.0))
        self._lanes[False][event][1].append((pause, 1.0))
        copied = [*copied, (during, -1 / size), (pause, -1 / size)]
        on_host = rows.column(whole=True)
        rows.at_most([(on_host, 1.0), *copied], 0.0)
        rows.at_most([(self._arrives[number, event], 1.0), (on_host, -1.0)], 0.0)
        if value.over >= len(self.events) and not value.again and self._graph.tensors[value.tensor].persistent:
            rows.at_most([(self._valid[number, event + 1], -1.0), (on_host, -1.0)], -1.0)
        return copied

    def _feed(self) -> None:
        """A re-run needs its inputs on the device in its pause."""
        for (k, pause), column in self._again.items():
            for number in self._read_by[k]:
                value = self.values[number]
                if pause >= value.over:  # the tensor has another value by then; what a plan does instead is free
                    continue
                sources = [
                    self._valid.get((number, pause)),
                    self._arrives.get((number, pause)),
                    self._again.get((value.writer, pause)) if value.again else None,
                ]
                self.rows.at_most([(column, 1.0), *((c, -1.0) for c in sources if c is not None)], 0.0)

    def _bound_events(self) -> None:
        """Add the memory at each event, and the lanes' time of each event and its pause."""
        cost_ns, link = self._moments.cost_ns, self._moments.link
        fixed_ns = np.concatenate(([0.0], np.cumsum(np.where(self._moments.fixed, cost_ns, 0.0))))
        for event, (k, end) in enumerate(pairwise([*self.events, len(cost_ns)])):
            operator = self._graph.operators[k]
            small = {*operator.reads, *operator.writes} - {*self._large(k)}
            own_bytes = operator.workspace_bytes + sum(self._graph.tensors[t].size_bytes for t in small)
            self.rows.at_most([*self._memory[event], (self.peak, -1.0)], -own_bytes / self.unit_bytes)
            for inward, bytes_per_s in ((True, link.in_bytes_per_s), (False, link.out_bytes_per_s)):
                rate = bytes_per_s / 1e9 / self.unit_bytes
                during, pause = self._lanes[inward][event]
                if during:
                    self.rows.at_most(during, rate * float(cost_ns[k]))
                    self.rows.at_most(
                        [*pause, (self._extra_ns[event], -rate)], rate * float(fixed_ns[end] - fixed_ns[k + 1])
                    )
