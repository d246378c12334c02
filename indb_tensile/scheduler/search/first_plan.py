"""Make the plan for which jobs wait: sweeps along the whole iteration at several prices, then improvement while work
is left.

A greedy search that lays everything out for every few choices takes time in the square of the operators: it plans a
thousand operators in milliseconds, and cannot plan a hundred thousand. A *sweep* (native/planner/sweep.hpp) makes all
choices in one scan, in near-linear time. From the papers it takes two ideas: the peak's candidates are ranked by
bytes over the limit per cost, and swapping competes with recomputation (Capuchin, section 4.4). It differs in three
points. Candidates compete at every position over the limit, in the order of time, because the tensors that leave the
device by one position decide which tensors have to leave by the next. The lanes' free time is allotted while choices
are made. And the value of a nanosecond on a lane is not fixed: several are tried. This *price* is the Lagrange
multiplier of the lanes' time. At 0 everything is swapped that the lanes can copy; at 1 every tensor is recomputed
that is computed in less time than it is copied in. The best price depends on how full the lanes become, so a few are
tried and the simulated time decides.

Then the plan is improved. The number of layouts allowed for that (layout_allowances.py) falls smoothly with the size
of the graph:

1. The step-by-step local search (local_search.py), if a ration suffices for it: better for small graphs.
2. If all results are slow, swap every tensor that must be, then exchange single choices (exchange.cpp).
3. The orders in which no update waits without need, which follow from the best plans so far.
4. The best plan of each order, improved by undoing places and choosing there again.
5. Swaps while the lanes are idle, in place of recomputations. The measure above counts a tensor's bytes at every
   position over the limit, so it prefers few tensors that are long away. Optimizer state consists of many small
   tensors, and those whose update comes soon after the peak are away for only a short part of the peak. Swapping all
   of them costs nothing while a lane is idle, but replaces a recomputation only together: no exchange of single
   choices finds that plan.
6. Steps 1, 4 and 5 again in orders in which the largest update runs later in the backward pass, if its state is a
   considerable part of the peak.
7. Steps 1, 3, 4 and 5 again in orders in which recomputations hold the tensors that they read. A concatenation can be
   recomputed from its inputs, and often no operator reads these after the forward pass. If they are released there,
   recomputing the concatenation means recomputing all of them. A tensor from which much larger results are made is
   therefore held until the last recomputation has read it.

A graph of a thousand operators gets all of this, a graph of a hundred thousand the sweeps alone. Between the two,
amounts change smoothly and no step ends at a certain size. The plan is the fastest of all that were found within the
limit, so less work never breaks a plan, and more work only adds candidates.

Unless a constant's comment names a measurement, the value was chosen by hand and no measurement is recorded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from indb_tensile.scheduler.search.candidate import CandidatePlan, candidate_of, fastest_candidate
from indb_tensile.scheduler.search.execution_orders import ExecutionOrders, translate_choices
from indb_tensile.scheduler.search.layout_allowances import (
    delay_allowance,
    hold_allowance,
    idle_allowance,
    layout_allowance,
    layout_ration,
)
from indb_tensile.scheduler.search.local_search import (
    MOST_REORDERINGS,
    NEAR,
    PRUNED,
    CancellationCheck,
    fits_layout_limit,
    layout_limit,
    never_cancel,
    search_parameters,
    single_tensor_parameters,
    swap_only_parameters,
)

# Each sweep: whether tensors may be recomputed, and the price of a nanosecond on a lane. The first sweeps are tried
# for every graph. Found on residual networks of 3,000 to 100,000 operators and on ResNet-50 and DenseNet-121 at three
# budgets: the best price is 0 to 0.1 for most and 0.4 or 1 where memory is shortest. A wrong price costs 1 to 10 % of
# time.
_SWEEPS = (
    *((True, price) for price in (0.05, 0.0, 0.2, 0.02, 0.1, 0.4, 1.0)),
    (False, 0.0),
)
# Operators swept in one order, which limits the number of prices. Measured: 2 to 5 us for each operator. A larger
# value tries more prices on large graphs and takes proportionally longer.
_SWEPT_WORK = 500_000
# The prices that are tried for any size: 0.05, 0 and 0.2 (low, free and high). Fewer risk a wrong price (see
# `_SWEEPS`).
_LEAST_SWEEPS = 3
# The layouts below which no improvement is begun, because one exchange of half the choices takes as many.
_LEAST_ALLOWANCE = 8
# The rations to improve a plan that is already followed: seconds, for any size. Jobs do not wait for this, so more
# rations only cost CPU time.
_FULL_RATIONS = 8
# From this multiple of the time of doing nothing on, every tensor that must be is swapped, and choices are exchanged.
# A lower value spends layouts on that for more graphs.
_SLOW = 1.3
# A plan of another order is also improved if it takes at most this multiple of the fastest plan's time. A larger
# value divides the layouts among more plans.
_HOPEFUL = 1.05
# The most rounds of improving the plan that will be taken, while layouts are left. Each round uses half of the rest.
_TURNS = 4
# The rounds of swapping while the lanes are idle. Measured on twelve captured networks at ten budgets: no plan is
# slower and 31 are faster, by up to 6 %, for a tenth of the planning time. A third round takes some first plans over
# a second.
_IDLE_ROUNDS = 2
# Where the largest update is tried, besides its place beside its gradient: after these shares of the time from there
# to the end of the backward pass. Measured on VGG-16 at ten budgets: seven plans are faster by 0.8 to 10 %, and no
# plan is slower. Compared with 0.4 and 0.6, three plans are faster and one is slower.
_DELAYS = (0.5, 0.75)
# The largest update is tried there if its state is at least 1/16 of the liveness peak. Smaller updates change little.
_LARGE_PART = 16
# The orders in which recomputations hold tensors are searched if a sweep at one of these lane prices is at once
# faster than the improved plan. Measured on thirteen networks: without this test, graphs of 700 to 2,100 operators
# that gain nothing take up to 0.3 s longer.
_PROBED_PRICES = (0.05, 0.2)
_FIRST_PART = 4  # One set of search parameters may take 1/4 of a ration. A larger part leaves less for improvement.
# The rounds of a sweep that only swaps, when nothing else reaches the limit. With fewer rounds more such plans end in
# swapping everything, which is slower.
_PERSISTENT_ROUNDS = 16


class FirstPlan:
    """The search for the first plan for one limit. `work` multiplies the usual allowance of layouts."""

    def __init__(
        self,
        orders: ExecutionOrders,
        top: CandidatePlan,
        limit_bytes: int,
        *,
        drops: bool,
        work: float = 1,
        cancellation_check: CancellationCheck = never_cancel,
    ) -> None:
        self._cancellation_check = cancellation_check
        self._orders, self._top, self._limit_bytes = orders, top, limit_bytes
        self._drops, self._work = drops, work
        self._operators = orders.first[0].operators
        self._ration = max(layout_limit(self._operators), layout_ration(self._operators, work), 1)
        self._end = 0  # the number of layouts, counted by the orders, at which the present allowance is used up

    def quick(self) -> CandidatePlan:
        """Return the fastest result of the sweeps, or the plan with the least memory if no sweep
        reaches the limit.
        """
        swept = self._sweep_orders(range(len(self._orders.first)))
        return fastest_candidate(swept) if swept else self._least_memory()

    def best(self) -> CandidatePlan:
        """Return the fastest candidate within the limit, or the candidate with the least memory if none fits."""
        swept = self._sweep_orders(range(len(self._orders.first)))
        if swept and self._costs_nothing(swept):
            return fastest_candidate(swept)
        self._end = self._orders.layouts + layout_allowance(self._operators, self._work)
        candidates = [*swept, *self._lower_orders(swept, range(len(self._orders.first)))]
        if self._layouts_left >= _LEAST_ALLOWANCE and (not candidates or self._is_slow(candidates)):
            candidates += self._swap_then_exchange()
        if not candidates:
            return self._least_memory()
        if self._costs_nothing(candidates) or self._layouts_left < _LEAST_ALLOWANCE:
            return fastest_candidate(candidates)
        for start in self._by_order(candidates)[:2]:
            candidates += self._sweep_in_late_orders(start)
        polished = self._polish_repeatedly(self._polish_in_late_orders(self._improve_best(candidates)))
        return self._hold_sources(self._delay_largest_update(self._swap_while_idle(polished)))

    def improved(self, candidate: CandidatePlan) -> CandidatePlan:
        """Improve a plan that is already followed.

        It takes `_FULL_RATIONS` rations, so that a large graph's plan improves, too.
        """
        if candidate.room_bytes is None:
            search = self._orders.chosen(candidate)
            if candidate.peak_bytes > self._limit_bytes or not search.fill(self._limit_bytes):
                return candidate
            candidate = fastest_candidate((candidate, candidate_of(candidate.order, search)))
        search = self._orders.chosen(candidate)
        for seed in range(_FULL_RATIONS):
            self._cancellation_check()
            search.sweep_again(drops=self._drops, most=self._ration, seed=seed)
        search.exchange(drops=self._drops, most=self._ration)
        return fastest_candidate((candidate, candidate_of(candidate.order, search)))

    # --- down to the limit ---------------------------------------------------------------------------------------

    def _sweep_orders(self, orders: Iterable[int]) -> list[CandidatePlan]:
        """Return for each of these orders the fastest result of sweeps at several lane prices."""
        prices = max(_LEAST_SWEEPS, min(len(_SWEEPS), round(self._work * _SWEPT_WORK) // self._operators))
        candidates = []
        for order in orders:
            search = self._orders.search(order)
            swept = []
            for drops, lane_price in _SWEEPS[:prices]:
                self._cancellation_check()
                drops = drops and self._drops
                if search.sweep(self._limit_bytes, drops=drops, lane_price=lane_price):
                    swept.append(candidate_of(order, search))
            candidates += [fastest_candidate(swept)] if swept else []
        return candidates

    def _lower_orders(self, swept: Sequence[CandidatePlan], tried: Iterable[int]) -> list[CandidatePlan]:
        """Return the results of local searches in these orders, as long as each ends within few layouts."""
        most = self._ration // _FIRST_PART
        if swept and not fits_layout_limit(min(len(candidate.choices) for candidate in swept), most):
            return []
        candidates: list[CandidatePlan] = []
        orders = set(tried)
        for options in search_parameters(drops=self._drops):
            for order in sorted(orders):
                self._cancellation_check()
                search = self._orders.search(order)
                search.clear()
                if search.lower(self._limit_bytes, options, most=self._at_most_left(most)):
                    search.prune(self._limit_bytes, min(PRUNED, self._at_most_left(most)))
                    candidates.append(candidate_of(order, search))
                else:
                    orders.discard(order)
        return candidates

    def _swap_then_exchange(self) -> list[CandidatePlan]:
        """Return candidates that swap every tensor that must be, or most of them, and then exchange swaps for
        recomputation.
        """
        near_bytes = self._limit_bytes + round(NEAR * (self._top.peak_bytes - self._limit_bytes))
        candidates: list[CandidatePlan] = []
        for order in self._orders.loose:
            for limit_bytes, options in (
                (self._limit_bytes, swap_only_parameters(1.0)),
                (near_bytes, single_tensor_parameters(drops=self._drops)),
            ):
                self._cancellation_check()
                search = self._orders.search(order)
                search.clear()
                search.lower(limit_bytes, options, most=self._at_most_left(self._ration))
                if search.press(self._limit_bytes, most=self._at_most_left(self._ration)):
                    search.prune(self._limit_bytes, min(PRUNED, self._at_most_left(self._ration)))
                    candidates.append(candidate_of(order, search))
                    candidates += self._fill_and_exchange(order, self._ration)
        return candidates

    def _least_memory(self) -> CandidatePlan:
        """Return a candidate after no price reached the limit: swapping alone for as many rounds as needed, or
        swapping everything.

        Tensors stay on the device while there is room in the limit, so even then no more tensors are away than
        necessary.
        """
        order = self._orders.loose[-1]
        search = self._orders.search(order)
        if search.sweep(self._limit_bytes, drops=False, lane_price=0.0, rounds=_PERSISTENT_ROUNDS):
            return candidate_of(order, search)
        search.exhaust()
        search.fill(self._limit_bytes)
        return candidate_of(order, search)

    # --- improving --------------------------------------------------------------------------------------------------

    def _improve_best(self, candidates: Sequence[CandidatePlan]) -> CandidatePlan:
        """Return the fastest result of improving each order's best candidate that is hopeful, or all while there are
        many layouts left.

        If the two fastest are laid out into the limit, a candidate made by steps is added, and always improved.
        """
        starts = self._by_order(candidates)
        laid_out = all(candidate.room_bytes is not None for candidate in starts[:2])
        stepped = self._lower_by_steps(starts[0]) if laid_out else []
        hopeful = _HOPEFUL * starts[0].iteration_ns
        improved = [*starts, *stepped]
        for candidate in (*starts, *stepped):
            if candidate.iteration_ns <= hopeful or candidate in stepped or self._layouts_left > 3 * self._ration:
                improved.append(self._polish(candidate, self._ration))
        return fastest_candidate(improved)

    def _polish_repeatedly(self, candidate: CandidatePlan) -> CandidatePlan:
        """Improve the plan that will be taken in several ways, until the allowance of layouts is used up."""
        for turn in range(_TURNS):
            if self._layouts_left < _LEAST_ALLOWANCE or self._costs_nothing((candidate,)):
                break
            starts = [candidate, *(self._lower_by_steps(candidate) if candidate.room_bytes is not None else ())]
            most = max(1, self._layouts_left // (2 * len(starts)))
            candidate = fastest_candidate([candidate, *(self._polish(start, most, turn + 1) for start in starts)])
        return candidate

    def _polish(self, candidate: CandidatePlan, most: int, turn: int = 0) -> CandidatePlan:
        """Improve the candidate by local search unless it is laid out into the limit; lay it out into the limit and
        improve it there.
        """
        if self._layouts_left < _LEAST_ALLOWANCE:
            return candidate
        self._cancellation_check()
        search = self._orders.chosen(candidate)
        candidates = [candidate]
        seed = search.operators + _TURNS * turn
        if candidate.room_bytes is None:
            options = (
                single_tensor_parameters(drops=self._drops) if turn % 2 else search_parameters(drops=self._drops)[0]
            )
            search.improve(self._limit_bytes, options, most=self._at_most_left(most), seed=seed)
            candidates.append(candidate_of(candidate.order, search))
        if candidate.room_bytes is not None or search.fill(self._limit_bytes):
            for number in range(2):
                search.exchange(drops=self._drops, most=self._at_most_left(most // 4))
                search.sweep_again(drops=self._drops, most=self._at_most_left(most // 4), seed=seed + number)
            candidates.append(candidate_of(candidate.order, search))
        return fastest_candidate(candidates)

    def _swap_while_idle(self, candidate: CandidatePlan) -> CandidatePlan:
        """Swap tensors while the lanes are idle in place of recomputing others.

        This step has an allowance of layouts of its own. It takes none from other steps, so no plan becomes slower.
        """
        most = idle_allowance(self._operators, self._work)
        search = self._orders.chosen(candidate)
        if most < _LEAST_ALLOWANCE or self._costs_nothing((candidate,)):
            return candidate
        if candidate.room_bytes is None and not search.fill(self._limit_bytes):
            return candidate
        for _ in range(_IDLE_ROUNDS):
            self._cancellation_check()
            if not search.swap_idle(most=most):
                break
            search.exchange(drops=self._drops, most=most // 2)
        return fastest_candidate((candidate, candidate_of(candidate.order, search)))

    def _delay_largest_update(self, candidate: CandidatePlan) -> CandidatePlan:
        """Search in the orders in which the largest update runs later in the backward pass.

        This step has an allowance of layouts of its own, as `_swap_while_idle`.
        """
        allowance = delay_allowance(self._operators, self._work)
        if allowance < _LEAST_ALLOWANCE:
            return candidate
        for share in _DELAYS:
            if self._costs_nothing((candidate,)):
                break
            order = self._orders.delayed(share, self._top.peak_bytes // _LARGE_PART)
            if order is None:
                break
            self._cancellation_check()
            self._end = self._orders.layouts + allowance
            swept = self._sweep_orders((order,))
            starts = [*swept, *self._lower_orders(swept, (order,))]
            if self._carry_choices(candidate, order):
                starts += self._fill_and_exchange(order, self._ration // 2)
            if starts:
                best = self._swap_while_idle(self._polish_repeatedly(self._improve_best(starts)))
                candidate = fastest_candidate((candidate, best))
        return candidate

    def _hold_sources(self, candidate: CandidatePlan) -> CandidatePlan:
        """Search in the orders in which recomputations hold the tensors that they read.

        This step has an allowance of layouts of its own, as `_swap_while_idle`.
        """
        allowance = hold_allowance(self._operators, self._work)
        if allowance < _LEAST_ALLOWANCE or not self._drops or self._costs_nothing((candidate,)):
            return candidate
        self._cancellation_check()
        held = [number for order in self._orders.loose if (number := self._orders.holding(order)) is not None]
        orders = [order for order in held if self._sweeps_faster(order, candidate)]
        if not orders:
            return candidate
        self._end = self._orders.layouts + allowance
        swept = self._sweep_orders(orders)
        starts = [*swept, *self._lower_orders(swept, orders)]
        for start in self._by_order(starts)[:2]:
            starts += self._sweep_in_late_orders(start)
        polished = self._polish_repeatedly(self._polish_in_late_orders(self._improve_best(starts)))
        return fastest_candidate((candidate, self._swap_while_idle(polished)))

    def _sweeps_faster(self, order: int, candidate: CandidatePlan) -> bool:
        """Return whether a sweep in this order meets the limit and takes less time than the candidate."""
        search = self._orders.search(order)
        return any(
            search.sweep(self._limit_bytes, drops=True, lane_price=lane_price)
            and search.iteration_ns < candidate.iteration_ns
            for lane_price in _PROBED_PRICES
        )

    def _lower_by_steps(self, candidate: CandidatePlan) -> list[CandidatePlan]:
        """Lower the same choices to the limit by local search instead of laying them out into the limit."""
        search = self._orders.search(candidate.order)
        search.choose(list(candidate.choices))
        if not search.lower(
            self._limit_bytes, single_tensor_parameters(drops=self._drops), most=self._at_most_left(self._ration // 2)
        ):
            return []
        search.prune(self._limit_bytes, min(PRUNED, self._at_most_left(self._ration)))
        return [candidate_of(candidate.order, search)]

    def _fill_and_exchange(self, order: int, most: int) -> list[CandidatePlan]:
        """Lay the search's present choices out into the limit and exchange them one by one."""
        search = self._orders.search(order)
        if not search.fill(self._limit_bytes):
            return []
        search.exchange(drops=self._drops, most=self._at_most_left(most))
        return [candidate_of(order, search)]

    # --- other orders -----------------------------------------------------------------------------------------------

    def _sweep_in_late_orders(self, candidate: CandidatePlan) -> list[CandidatePlan]:
        """Return candidates in the orders in which no update waits without need: the same choices, and new sweeps."""
        candidates: list[CandidatePlan] = []
        for _ in range(MOST_REORDERINGS):
            order = self._orders.settled(candidate)
            if (
                self._layouts_left < _LEAST_ALLOWANCE
                or order == candidate.order
                or not self._carry_choices(candidate, order)
            ):
                break
            candidates += [*self._fill_and_exchange(order, self._ration // 2), *self._sweep_orders((order,))]
            best = fastest_candidate((candidate, *candidates))
            if best is candidate:
                break
            candidate = best
        return candidates

    def _polish_in_late_orders(self, candidate: CandidatePlan) -> CandidatePlan:
        """Improve the candidate in the order in which no update waits without need, as long as that is faster."""
        for _ in range(MOST_REORDERINGS):
            order = self._orders.settled(candidate)
            done = self._layouts_left < _LEAST_ALLOWANCE or self._costs_nothing((candidate,))
            if done or order == candidate.order or not self._carry_choices(candidate, order):
                break
            carried = replace(candidate_of(order, self._orders.search(order)), room_bytes=None)
            starts = [*self._fill_and_exchange(order, 1), *self._lower_by_steps(carried)]
            best = fastest_candidate([candidate, *(self._polish(start, self._ration // 2) for start in starts)])
            if best is candidate:
                break
            candidate = best
        return candidate

    def _carry_choices(self, candidate: CandidatePlan, order: int) -> bool:
        """Make the candidate's choices in another order. Return False if that is not possible."""
        search = self._orders.search(order)
        try:
            search.choose(translate_choices(self._orders.chosen(candidate), search))
        except ValueError:  # the choices would also have to recompute a tensor that the waiting update kept
            return False
        return True

    # --- the allowance of layouts --------------------------------------------------------------------------------

    @property
    def _layouts_left(self) -> int:
        """The number of layouts that are still allowed."""
        return self._end - self._orders.layouts

    def _at_most_left(self, layouts: int) -> int:
        return max(1, min(layouts, self._layouts_left))

    def _is_slow(self, candidates: Iterable[CandidatePlan]) -> bool:
        return fastest_candidate(candidates).iteration_ns > _SLOW * self._top.iteration_ns

    def _costs_nothing(self, candidates: Iterable[CandidatePlan]) -> bool:
        return any(candidate.iteration_ns <= self._top.iteration_ns for candidate in candidates)

    def _by_order(self, candidates: Iterable[CandidatePlan]) -> list[CandidatePlan]:
        """Return the fastest candidate of each order, laid out into the limit or not. The fastest of
        all comes first.
        """
        best: dict[tuple[int, bool], CandidatePlan] = {}
        for candidate in candidates:
            kind = (candidate.order, candidate.room_bytes is None)
            best[kind] = fastest_candidate((best[kind], candidate)) if kind in best else candidate
        return sorted(best.values(), key=lambda candidate: candidate.speed)
