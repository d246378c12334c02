"""The plan that jobs wait for: sweeps along the whole iteration at several prices, then improved while work is left.

A greedy search that lays everything out for every few choices takes time in the square of the operators: it finds
plans of a thousand operators in milliseconds, and none of a hundred thousand. A *sweep* (native/planner/sweep.hpp)
makes all choices in one scan, in near-linear time. What it takes from the papers: the peak's candidates are ranked by
bytes over the limit per cost, and swapping competes with making again (Capuchin, section 4.4). Where it differs:
candidates compete at every position over the limit, in the order of time, since what leaves the device by one
position decides what has to leave by the next; the lanes' free time is given out as choices are made; and what a
nanosecond on a lane is worth is not fixed but tried. That *price* is the Lagrange multiplier of the lanes' time: at 0
all is swapped that the lanes can, at 1 what is computed in less time than it is copied in is made again. Which price
is best follows from how full the lanes become, so a few are tried and the simulated time decides.

Then the plan is improved. The number of layouts allowed for that falls smoothly with the size of the graph:

1. The step-by-step manners of coming down (descent.py), where a ration suffices for them: better for small graphs.
2. Where all of that is slow, swapping everything that must, and exchanging (exchange.cpp).
3. The orders in which nothing waits without need, which follow from the best plans so far.
4. The best of each order, improved by undoing places and choosing there again.

A graph of a thousand operators gets all of it, one of a hundred thousand the sweeps alone; between the two there is
no size at which anything but an amount changes. Every plan found is one of several, and the fastest within the limit
is taken, so less work never breaks a plan, and more work only adds candidates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from indb_tensile.scheduler.search.descent import (
    NEAR,
    PRUNED,
    SETTLINGS,
    Heed,
    lowerable,
    manners_of,
    patient,
    ration_of,
    swapping,
    unhurried,
)
from indb_tensile.scheduler.search.orders import Orders, carried_over
from indb_tensile.scheduler.search.rung import Rung, fastest, rung_of

# Whether anything may be made again, and what a nanosecond on a lane costs; the first are tried for every graph.
# Found on residual networks of 3,000 to 100,000 operators and on ResNet-50 and DenseNet-121 at three budgets: the
# best price is 0 to 0.1 for most and 0.4 or 1 where memory is shortest, and a wrong one costs 1 to 10 % of time.
_SWEEPS = (
    *((True, price) for price in (0.05, 0.0, 0.2, 0.02, 0.1, 0.4, 1.0)),
    (False, 0.0),
)
_SWEPT_WORK = 500_000  # operators swept in one order, at as many prices as that allows: 2 to 5 us for each
_LEAST_SWEEPS = 3  # prices tried whatever the size: 0.05, 0 and 0.2, one low, one free and one high
# Operators laid out for a small graph's first plan: half a second to a second of a processor. Over ten budgets of the
# ten captured networks the iterations are 0.2 % longer than what five times the time found, the worst point 10 %.
_ALLOWED_WORK = 8_500_000
_HALF_AT = 5_000  # operators at which half of that is spent: orders and outlines, in Python, take as long as the rest
_RATIONS = 7  # that a small graph's allowance is divided into: one for each way down and its improvement
_ALWAYS, _EACH = 400, 24  # layouts that a ration never exceeds, and so many more for each operator of a tiny graph
_LEAST_ALLOWANCE = 8  # layouts below which no improvement is begun: one exchange of half the choices takes as many
_FULL_RATIONS = 8  # of improving a plan that is followed: seconds, whatever the size
_SLOW = 1.3  # times as long as doing nothing, from which on all that must is swapped, and exchanged
_HOPEFUL = 1.05  # times as slow as the fastest, up to which another order's plan is improved as well
_TURNS = 4  # of improving the plan that is to be taken, while there is work left
_FIRST_PART = 4  # of a ration: what one manner of coming down may take
_PERSISTENT_ROUNDS = 16  # of a sweep that only swaps, where nothing else comes down to the limit


class FirstPlan:
    """The first plan for one limit. `work` multiplies the usual allowance of layouts."""

    def __init__(
        self, orders: Orders, top: Rung, limit_bytes: int, *, drops: bool, work: float = 1, heed: Heed = unhurried
    ) -> None:
        self._heed = heed
        self._orders, self._top, self._limit_bytes = orders, top, limit_bytes
        self._drops, self._work = drops, work
        self._operators = orders.first[0].operators
        self._ration = max(ration_of(self._operators), layout_allowance(self._operators, work) // _RATIONS, 1)
        self._end = 0

    def quick(self) -> Rung:
        """The fastest of what sweeps find, or the least memory where that is nothing."""
        swept = self._swept(range(len(self._orders.first)))
        return fastest(swept) if swept else self._least()

    def best(self) -> Rung:
        """The fastest plan found within the limit, or the least memory where none is."""
        swept = self._swept(range(len(self._orders.first)))
        if swept and self._costs_nothing(swept):
            return fastest(swept)
        self._end = self._orders.layouts + layout_allowance(self._operators, self._work)
        found = [*swept, *self._lowered_first(swept)]
        if self._left >= _LEAST_ALLOWANCE and (not found or self._slow(found)):
            found += self._pressed()
        if not found:
            return self._least()
        if self._costs_nothing(found) or self._left < _LEAST_ALLOWANCE:
            return fastest(found)
        for start in self._by_order(found)[:2]:
            found += self._settled_quickly(start)
        return self._polished_on(self._settled(self._improved(found)))

    def improved(self, rung: Rung) -> Rung:
        """A plan that is followed, improved further: by so many steps that a large graph's gains, too."""
        if rung.room_bytes is None:
            search = self._orders.chosen(rung)
            if rung.peak_bytes > self._limit_bytes or not search.fill(self._limit_bytes):
                return rung
            rung = fastest((rung, rung_of(rung.order, search)))
        search = self._orders.chosen(rung)
        for seed in range(_FULL_RATIONS):
            self._heed()
            search.sweep_again(drops=self._drops, most=self._ration, seed=seed)
        search.exchange(drops=self._drops, most=self._ration)
        return fastest((rung, rung_of(rung.order, search)))

    # --- coming down ------------------------------------------------------------------------------------------------

    def _swept(self, orders: Iterable[int]) -> list[Rung]:
        """In each of these orders the fastest of what sweeps find at several prices of the lanes."""
        prices = max(_LEAST_SWEEPS, min(len(_SWEEPS), round(self._work * _SWEPT_WORK) // self._operators))
        found = []
        for order in orders:
            search = self._orders.search(order)
            swept = []
            for drops, lane_price in _SWEEPS[:prices]:
                self._heed()
                drops = drops and self._drops
                if search.sweep(self._limit_bytes, drops=drops, lane_price=lane_price):
                    swept.append(rung_of(order, search))
            found += [fastest(swept)] if swept else []
        return found

    def _lowered_first(self, swept: Sequence[Rung]) -> list[Rung]:
        """What the manners find in every order, as long as each comes down in few layouts."""
        most = self._ration // _FIRST_PART
        if swept and not lowerable(min(len(rung.choices) for rung in swept), most):
            return []
        found: list[Rung] = []
        orders = set(range(len(self._orders.first)))
        for manner in manners_of(drops=self._drops):
            for order in sorted(orders):
                self._heed()
                search = self._orders.search(order)
                search.clear()
                if search.lower(self._limit_bytes, manner, most=self._most(most)):
                    search.prune(self._limit_bytes, min(PRUNED, self._most(most)))
                    found.append(rung_of(order, search))
                else:
                    orders.discard(order)
        return found

    def _pressed(self) -> list[Rung]:
        """Everything swapped that must be, or most of it, and what is left exchanged for making again."""
        near_bytes = self._limit_bytes + round(NEAR * (self._top.peak_bytes - self._limit_bytes))
        found: list[Rung] = []
        for order in self._orders.loose:
            for limit_bytes, manner in (
                (self._limit_bytes, swapping(1.0)),
                (near_bytes, patient(drops=self._drops)),
            ):
                self._heed()
                search = self._orders.search(order)
                search.clear()
                search.lower(limit_bytes, manner, most=self._most(self._ration))
                if search.press(self._limit_bytes, most=self._most(self._ration)):
                    search.prune(self._limit_bytes, min(PRUNED, self._most(self._ration)))
                    found.append(rung_of(order, search))
                    found += self._filled(order, self._ration)
        return found

    def _least(self) -> Rung:
        """Where no price came down: swapping alone, for as many rounds as that takes, or everything.

        What is laid into the limit stays while there is room, so that even then no more is away than has to be.
        """
        order = self._orders.loose[-1]
        search = self._orders.search(order)
        if search.sweep(self._limit_bytes, drops=False, lane_price=0.0, rounds=_PERSISTENT_ROUNDS):
            return rung_of(order, search)
        search.exhaust()
        search.fill(self._limit_bytes)
        return rung_of(order, search)

    # --- improving --------------------------------------------------------------------------------------------------

    def _improved(self, found: Sequence[Rung]) -> Rung:
        """The fastest of what improving the best of each order leads to."""
        starts = self._by_order(found)
        if all(rung.room_bytes is not None for rung in starts[:2]):
            starts += self._stepwise(starts[0])
        hopeful = _HOPEFUL * starts[0].iteration_ns
        improved = list(starts)
        for rung in starts:
            if rung.iteration_ns <= hopeful or rung is starts[-1] or self._left > 3 * self._ration:
                improved.append(self._polished(rung, self._ration))
        return fastest(improved)

    def _polished_on(self, rung: Rung) -> Rung:
        """Improve the plan that is to be taken in several ways, until the allowance of layouts is used up."""
        for turn in range(_TURNS):
            if self._left < _LEAST_ALLOWANCE or self._costs_nothing((rung,)):
                break
            starts = [rung, *(self._stepwise(rung) if rung.room_bytes is not None else ())]
            most = max(1, self._left // (2 * len(starts)))
            rung = fastest([rung, *(self._polished(start, most, turn + 1) for start in starts)])
        return rung

    def _polished(self, rung: Rung, most: int, turn: int = 0) -> Rung:
        """Improved by steps where it is not laid into the limit, laid into it, and improved there."""
        if self._left < _LEAST_ALLOWANCE:
            return rung
        self._heed()
        search = self._orders.chosen(rung)
        found = [rung]
        seed = search.operators + _TURNS * turn
        if rung.room_bytes is None:
            manner = patient(drops=self._drops) if turn % 2 else manners_of(drops=self._drops)[0]
            search.improve(self._limit_bytes, manner, most=self._most(most), seed=seed)
            found.append(rung_of(rung.order, search))
        if rung.room_bytes is not None or search.fill(self._limit_bytes):
            for number in range(2):
                search.exchange(drops=self._drops, most=self._most(most // 4))
                search.sweep_again(drops=self._drops, most=self._most(most // 4), seed=seed + number)
            found.append(rung_of(rung.order, search))
        return fastest(found)

    def _stepwise(self, rung: Rung) -> list[Rung]:
        """The same choices, no longer laid into the limit, lowered to it."""
        search = self._orders.search(rung.order)
        search.choose(list(rung.choices))
        if not search.lower(self._limit_bytes, patient(drops=self._drops), most=self._most(self._ration // 2)):
            return []
        search.prune(self._limit_bytes, min(PRUNED, self._most(self._ration)))
        return [rung_of(rung.order, search)]

    def _filled(self, order: int, most: int) -> list[Rung]:
        """What is chosen now, laid into the limit and exchanged one by one."""
        search = self._orders.search(order)
        if not search.fill(self._limit_bytes):
            return []
        search.exchange(drops=self._drops, most=self._most(most))
        return [rung_of(order, search)]

    # --- other orders -----------------------------------------------------------------------------------------------

    def _settled_quickly(self, rung: Rung) -> list[Rung]:
        """What becomes of it in the order in which nothing waits without need, and what is swept there."""
        found: list[Rung] = []
        for _ in range(SETTLINGS):
            order = self._orders.settled(rung)
            if self._left < _LEAST_ALLOWANCE or order == rung.order or not self._carried(rung, order):
                break
            found += [*self._filled(order, self._ration // 2), *self._swept((order,))]
            best = fastest((rung, *found))
            if best is rung:
                break
            rung = best
        return found

    def _settled(self, rung: Rung) -> Rung:
        """Improved in the order in which nothing waits without need, as long as that is faster."""
        for _ in range(SETTLINGS):
            order = self._orders.settled(rung)
            done = self._left < _LEAST_ALLOWANCE or self._costs_nothing((rung,))
            if done or order == rung.order or not self._carried(rung, order):
                break
            carried = replace(rung_of(order, self._orders.search(order)), room_bytes=None)
            starts = [*self._filled(order, 1), *self._stepwise(carried)]
            best = fastest([rung, *(self._polished(start, self._ration // 2) for start in starts)])
            if best is rung:
                break
            rung = best
        return rung

    def _carried(self, rung: Rung, order: int) -> bool:
        """Choose in another order what was chosen in this one. Whether that can be."""
        search = self._orders.search(order)
        try:
            search.choose(carried_over(self._orders.chosen(rung), search))
        except ValueError:  # what an update that waited kept there would have to be made again, too
            return False
        return True

    # --- what it costs ----------------------------------------------------------------------------------------------

    @property
    def _left(self) -> int:
        """How many layouts are still allowed."""
        return self._end - self._orders.layouts

    def _most(self, wanted: int) -> int:
        return max(1, min(wanted, self._left))

    def _slow(self, rungs: Iterable[Rung]) -> bool:
        return fastest(rungs).iteration_ns > _SLOW * self._top.iteration_ns

    def _costs_nothing(self, rungs: Iterable[Rung]) -> bool:
        return any(rung.iteration_ns <= self._top.iteration_ns for rung in rungs)

    def _by_order(self, found: Iterable[Rung]) -> list[Rung]:
        """The fastest in each order, laid into the limit or not, the fastest of all first."""
        best: dict[tuple[int, bool], Rung] = {}
        for rung in found:
            kind = (rung.order, rung.room_bytes is None)
            best[kind] = fastest((best[kind], rung)) if kind in best else rung
        return sorted(best.values(), key=lambda rung: rung.speed)


def layout_allowance(operators: int, work: float = 1) -> int:
    """How many layouts the first plan of so many operators may take after the sweeps."""
    work_operators = work * _ALLOWED_WORK / (1 + operators / _HALF_AT)
    return min(round(work_operators) // operators, round(work * _RATIONS * (_ALWAYS + _EACH * operators)))
