"""Search for one graph's plan within one limit with full effort. No job waits for this search.

Jobs wait for the first plan (first_plan.py). The controller asks for the plan of this module while the first plan is
followed, so the search may take longer, as HOME's particle swarm does (section IV). The search tries every order,
every set of search parameters, staged limits and forced swaps, and improves the best of each.

Work is limited by the number of layouts, in proportion to the size of the graph, never by the clock: equal inputs
give equal plans. A *ration* is the same amount of work for every size, so a larger graph gets fewer layouts of each
kind, without a size at which a kind of search ends abruptly. A local search that would take more layouts than a
ration is not begun: see `fits_layout_limit`.

Unless a constant's comment names a measurement, the value was chosen by hand and no measurement is recorded.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

from indb_tensile.scheduler.search.candidate import CandidatePlan, candidate_of, fastest_candidate
from indb_tensile.scheduler.search.execution_orders import ExecutionOrders, translate_choices
from indb_tensile.scheduler.search.step_search import GreedyOptions, StepSearch

# The most choices that a pruning tries to undo. Each try is one layout. With fewer tries, needless choices remain in
# plans with many choices.
PRUNED = 200
# Operators laid out for one limit: some tenths of a second. This is the unit of all rations. A larger value makes
# every search proportionally longer; a smaller one makes plans of large graphs worse.
_WORK = 1_000_000
# The layouts for each operator of a small graph. They bound the ration where `_WORK` would allow more layouts than
# few choices can use. A larger value only costs time.
_WORK_PER_OPERATOR = 8
# The most tensors that one step of the greedy search takes at once. `fits_layout_limit` relies on it; the largest
# `together` below has to equal it.
_TOGETHER = 64
# The rations after which no further set of search parameters is tried. A higher value tries more and takes longer.
_TRIES = 2
# The rations for the improvement of one candidate. A larger value improves each candidate longer.
_DEEP = 3
# The rations for a limit that no set of parameters reaches. With fewer, more such limits end in swapping alone.
_MORE_RATIONS = 3
# The staged limits, as fractions of the way from the limit to the liveness peak. Each halves the distance, because a
# good plan for slightly more memory is seldom a dead end. Measured: DenseNet-121 within 540 MB on an H200 takes 1.15
# times as long with stages and 1.56 times without. Each stage costs up to a few rations.
_STAGES = (0.16, 0.08, 0.04, 0.02, 0.01, 0.005, 0.0)
# The attempts for each stage, each from another plan of the stage before. More attempts rescue more stages and cost
# three rations each.
_STARTS = 3
# The fraction of the way from the limit to the liveness peak down to which choices are made freely; `press` forces
# the rest, which costs least from about this value. At 0 making choices freely has to reach the limit; at larger
# values more tensors are forced to be away.
NEAR = 0.1
# A candidate within 2 % of the time of the plan that keeps every tensor counts as nearly free: it is improved for
# less recomputation, and forced swaps are not tried. A larger value saves time and may miss a faster plan.
_CLOSE = 1.02
# The orders that may follow from one plan one after the other, each from the plan that the one before led to. Each
# costs layouts of several candidates; the loop ends earlier if an order does not help.
MOST_REORDERINGS = 3
# The parameters for candidates that recompute less: steps of up to 64 tensors first, then of up to 8. Each is lowered
# within `_DEEP` rations. A further entry costs as much.
_CAREFUL = tuple(
    GreedyOptions(drops=False, lane_price=0.02, tried=1, together=together, careful=True) for together in (64, 8)
)


class Effort(IntEnum):
    """The effort of a search."""

    QUICK = 0  # the first plan that is found
    USUAL = 1  # the best of a few plans, improved: the first plan (first_plan.py)
    FULL = 2  # the best of every order and every kind of search, improved (this module)


def layout_limit(operators: int) -> int:
    """Return how many layouts a search for one limit may take."""
    return max(1, min(_WORK // operators, 100 + _WORK_PER_OPERATOR * operators))


def fits_layout_limit(moves: int, ration: int) -> bool:
    """Return whether a local search that moves or recomputes this many tensors can end within `ration` layouts.

    A layout takes up to `_TOGETHER` tensors at best, and about as many layouts again do not help. Measured on
    residual networks: 10,000 operators take 30 layouts for 1,100 moves.
    """
    return 2 * moves <= _TOGETHER * ration


def search_parameters(*, drops: bool) -> tuple[GreedyOptions, ...]:
    """Return the sets of search parameters, in the order in which they are tried.

    They differ in the price of lane time, in the number of tensors that one step takes at once (`together`), and in
    the number of candidates of which it takes the best (`tried`).
    """
    unchecked = GreedyOptions(drops=drops, lane_price=0.02, tried=1, together=64, surprise=1.0)
    return (
        GreedyOptions(drops=drops, lane_price=0.02, tried=4, together=16),
        unchecked,
        GreedyOptions(drops=drops, lane_price=0.02, tried=1, together=64, careful=True),
        GreedyOptions(drops=drops, lane_price=0.1, tried=1, together=16),
        GreedyOptions(drops=drops, lane_price=0.02, tried=2),
        GreedyOptions(drops=drops, lane_price=0.0, tried=6),
    )


# A cancellation check. The search calls it before each piece of work; an exception that it raises ends the search.
CancellationCheck = Callable[[], None]


def never_cancel() -> None:
    """Do nothing: the cancellation check of a search that always runs to its end."""


class LocalSearch:
    """A local search for one limit. It starts from the plan that keeps every tensor and lowers the peak in steps."""

    def __init__(
        self,
        orders: ExecutionOrders,
        top: CandidatePlan,
        limit_bytes: int,
        *,
        drops: bool,
        cancellation_check: CancellationCheck = never_cancel,
    ) -> None:
        self._cancellation_check = cancellation_check
        self._orders, self._top, self._limit_bytes = orders, top, limit_bytes
        self._drops = drops
        self._ration = layout_limit(orders.first[0].operators)

    def best(self) -> CandidatePlan:
        """Return the fastest candidate within the limit, or the candidate with the least memory if none fits."""
        candidates = self._try_all_parameters()
        candidates += self._lower_in_stages({candidate.order for candidate in candidates})
        candidates = candidates or self._retry_with_more_layouts()
        if not candidates:
            return self._swap_then_exchange()
        if self._costs_nothing(candidates):
            return fastest_candidate(candidates)
        starts = [
            fastest_candidate(r for r in candidates if r.order == order)
            for order in sorted({r.order for r in candidates})
        ]
        settled = [self._improve_in_late_orders(self._improve_all_ways(start)) for start in starts]
        # `loose` orders are those in which most tensors may be recomputed.
        none_loose = all(candidate.order not in self._orders.loose for candidate in candidates)
        if none_loose or fastest_candidate(settled).iteration_ns > _CLOSE * self._top.iteration_ns:
            settled += [
                candidate for candidate in (self._swap_then_exchange(),) if candidate.peak_bytes <= self._limit_bytes
            ]
        return fastest_candidate(settled)

    def _try_all_parameters(self) -> list[CandidatePlan]:
        """Return the candidates that the sets of parameters find in every order, while there is work left."""
        candidates: list[CandidatePlan] = []
        spent = 0
        for number, options in enumerate(search_parameters(drops=self._drops)):
            for order, search in enumerate(self._orders.first):
                enough = number > 0 and spent > _TRIES * self._ration
                if candidates and (self._costs_nothing(candidates) or enough):
                    return candidates
                start = search.layouts
                self._cancellation_check()
                candidates += self._lower_from_scratch(order, options, self._ration)
                spent += search.layouts - start
        return candidates

    def _lower_in_stages(self, reached: set[int]) -> list[CandidatePlan]:
        """Return candidates found limit by limit, improved each time, for loose orders in which no set of parameters
        succeeded.

        Recomputation needs memory itself. A greedy search can therefore end where no single step frees enough for the
        next. A good plan for slightly more memory is seldom such a dead end.
        """
        return [
            candidate
            for order in self._orders.loose
            if order not in reached
            for candidate in self._lower_order_in_stages(order)
        ]

    def _lower_order_in_stages(self, order: int) -> list[CandidatePlan]:
        search = self._orders.search(order)
        search.clear()
        for stage, fraction in enumerate(_STAGES):
            limit_bytes = self._limit_bytes + round(fraction * (self._top.peak_bytes - self._limit_bytes))
            if not self._lower_one_stage(search, limit_bytes, seed=search.operators + stage):
                return []
        return [candidate_of(order, search)]

    def _lower_one_stage(self, search: StepSearch, limit_bytes: int, *, seed: int) -> bool:
        """Lower the peak to the next limit and improve the result. If that fails, improve the plan differently and
        try again.
        """
        first = search_parameters(drops=self._drops)[0]
        above_bytes = search.peak_bytes
        for attempt in range(_STARTS):
            before = search.choices
            self._cancellation_check()
            if search.lower(limit_bytes, self._single_tensor, most=_MORE_RATIONS * self._ration):
                search.prune(limit_bytes, PRUNED)
                search.improve(limit_bytes, first, most=self._ration, seed=seed)
                return True
            search.choose(before)
            search.improve(above_bytes, self._single_tensor, most=self._ration, seed=seed + _STARTS * (attempt + 1))
        return False

    def _retry_with_more_layouts(self) -> list[CandidatePlan]:
        """Search with more rations, after no set of parameters succeeded."""
        orders = range(len(self._orders.first))
        return [
            candidate
            for order in orders
            for candidate in self._lower_from_scratch(order, self._single_tensor, _MORE_RATIONS * self._ration)
        ]

    def _lower_from_scratch(self, order: int, options: GreedyOptions, most: int) -> list[CandidatePlan]:
        self._cancellation_check()
        search = self._orders.search(order)
        search.clear()
        return self._prune(order, search) if search.lower(self._limit_bytes, options, most=most) else []

    def _prune(self, order: int, search: StepSearch) -> list[CandidatePlan]:
        search.prune(self._limit_bytes, PRUNED)
        return [candidate_of(order, search)]

    # --- improving a plan ---------------------------------------------------------------------------------

    def _improve_all_ways(self, start: CandidatePlan) -> CandidatePlan:
        """Return the fastest result of improving the candidate with several sets of parameters."""
        first = search_parameters(drops=self._drops)[0]
        improved = [self._improve(start, (first,)), self._improve(start, (self._single_tensor,))]
        best = fastest_candidate(improved)
        if best.iteration_ns < _CLOSE * self._top.iteration_ns:
            improved += self._recompute_less(best)
        return fastest_candidate((*improved, *self._exchange(fastest_candidate(improved))))

    def _improve(self, candidate: CandidatePlan, option_sets: Sequence[GreedyOptions]) -> CandidatePlan:
        search = self._orders.search(candidate.order)
        search.choose(list(candidate.choices))
        for number, options in enumerate(option_sets):
            self._cancellation_check()
            search.improve(self._limit_bytes, options, most=_DEEP * self._ration, seed=search.operators + number)
        return candidate_of(candidate.order, search)

    def _recompute_less(self, best: CandidatePlan) -> list[CandidatePlan]:
        """Return other candidates that recompute less.

        The best candidate is nearly as fast as keeping every tensor. The time that it still loses may be
        recomputation.
        """
        candidates = [self._improve(best, (swap_only_parameters(0.1),))]
        mixed = GreedyOptions(drops=self._drops, lane_price=0.02, tried=4, together=16)
        for options in _CAREFUL:
            if self._costs_nothing(candidates):
                break
            for candidate in self._lower_from_scratch(best.order, options, _DEEP * self._ration):
                candidates.append(self._improve(candidate, (mixed, swap_only_parameters(0.1))))
        return candidates

    def _exchange(self, candidate: CandidatePlan) -> list[CandidatePlan]:
        """Lay the candidate out into the limit and replace single choices."""
        self._cancellation_check()
        search = self._orders.search(candidate.order)
        search.choose(list(candidate.choices))
        if not search.fill(self._limit_bytes):
            return []
        search.exchange(drops=self._drops, most=self._ration)
        return [candidate_of(candidate.order, search)]

    def _improve_in_late_orders(self, candidate: CandidatePlan) -> CandidatePlan:
        """Continue in the order in which no update waits for the iteration's end without need."""
        for _ in range(MOST_REORDERINGS):
            order = self._orders.settled(candidate)
            if order == candidate.order or self._costs_nothing((candidate,)):
                break
            best = fastest_candidate((candidate, *self._carry_over(candidate, order)))
            if best is candidate:
                break
            candidate = best
        return candidate

    def _carry_over(self, candidate: CandidatePlan, order: int) -> list[CandidatePlan]:
        """Return the results of the same choices in another order."""
        search = self._orders.search(order)
        carried = CandidatePlan(
            order=order,
            peak_bytes=candidate.peak_bytes,
            iteration_ns=candidate.iteration_ns,
            lane_ns=candidate.lane_ns,
            choices=tuple(translate_choices(self._orders.chosen(candidate), search)),
        )
        try:
            self._orders.chosen(carried)
        except ValueError:  # the choices would also have to recompute a tensor that the waiting update kept
            return []
        candidates = self._exchange(carried)
        if self._orders.chosen(carried).lower(self._limit_bytes, self._single_tensor, most=self._ration):
            (pruned,) = self._prune(order, search)
            candidates.append(self._improve(pruned, (self._single_tensor,)))
            candidates += self._exchange(candidates[-1])
        return candidates

    # --- little memory ----------------------------------------------------------------------------------------

    def _swap_then_exchange(self) -> CandidatePlan:
        """Search for little memory: swap every tensor that must be away, then exchange swaps for recomputation.

        Recomputation needs some memory itself, so only swaps may reach a low limit. If they do not reach it either,
        every tensor is swapped in every gap, which gives the least memory.
        """
        near_bytes = self._limit_bytes + round(NEAR * (self._top.peak_bytes - self._limit_bytes))
        orders = self._orders.loose
        candidates: list[CandidatePlan] = []
        for order in orders:
            candidates += self._lower_and_press(order, self._limit_bytes, swap_only_parameters(1.0))
            candidates += self._lower_and_press(order, near_bytes, self._single_tensor)
        if not candidates:
            search = self._orders.search(orders[-1])
            search.exhaust()
            search.prune(self._limit_bytes, self._ration)
            return candidate_of(orders[-1], search)
        candidates += [other for candidate in tuple(candidates) for other in self._exchange(candidate)]
        candidates += self._exchange(fastest_candidate(candidates))
        return self._improve_in_late_orders(fastest_candidate(candidates))

    def _lower_and_press(self, order: int, near_bytes: int, options: GreedyOptions) -> list[CandidatePlan]:
        """Lower the peak as far as possible with free choices, then force swaps until it is below the limit."""
        self._cancellation_check()
        search = self._orders.search(order)
        search.clear()
        search.lower(near_bytes, options, most=self._ration)
        return self._prune(order, search) if search.press(self._limit_bytes, most=self._ration) else []

    @property
    def _single_tensor(self) -> GreedyOptions:
        return single_tensor_parameters(drops=self._drops)

    def _costs_nothing(self, candidates: Iterable[CandidatePlan]) -> bool:
        return any(candidate.iteration_ns <= self._top.iteration_ns for candidate in candidates)


def single_tensor_parameters(*, drops: bool) -> GreedyOptions:
    """Return the parameters that take one tensor at a time, the better of two candidates."""
    return GreedyOptions(drops=drops, lane_price=0.1, tried=2)


def swap_only_parameters(lane_price: float) -> GreedyOptions:
    """Return the parameters that lower a peak by swaps alone."""
    return GreedyOptions(drops=False, lane_price=lane_price, tried=1, together=16)
