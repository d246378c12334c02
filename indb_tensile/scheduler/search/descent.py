"""One graph's plan for one limit, searched for step by step with all effort: what nobody waits for.

What a device's jobs wait for is the first plan (first_plan.py). This one is what the controller asks for while that
is followed, as HOME gives a particle swarm its time (section IV): every order, every manner of coming down, in stages
and by pressing, and the best of each improved.

Work is rationed by layouts, in proportion to the size of the graph, never by the clock: equal inputs give equal
plans. A ration is the same work for every size, so a larger graph gets fewer layouts of each kind, without a size at
which anything ends. A way down that takes more layouts than a ration is not begun: `lowerable` says when.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

from indb_tensile.scheduler.search.orders import Orders, carried_over
from indb_tensile.scheduler.search.rung import Rung, fastest, rung_of
from indb_tensile.scheduler.search.step_search import Manner, StepSearch

PRUNED = 200
_WORK = 1_000_000  # operators laid out for one limit: some tenths of a second
_WORK_PER_OPERATOR = 8  # layouts for each operator of a small graph, which has few choices
_TOGETHER = 64  # tensors that a manner takes at once at most
_TRIES = 2  # rations after which no further manner is tried
_DEEP = 3  # rations for an improvement
_PATIENT = 3  # rations for a limit that no manner comes down to
_STAGES = (0.16, 0.08, 0.04, 0.02, 0.01, 0.005, 0.0)  # of the way up from a limit
_STARTS = 3  # plans for more memory, from which one for a stage's is tried
NEAR = 0.1  # of the way up from such a limit, from where pressing the rest down costs least
_CLOSE = 1.02  # of the time that doing nothing takes
SETTLINGS = 3  # orders that follow from one plan after the other
_CAREFUL = tuple(
    Manner(drops=False, lane_price=0.02, tried=1, together=together, careful=True) for together in (64, 8)
)


class Effort(IntEnum):
    """How far a search goes on."""

    QUICK = 0  # the first plan that is found
    USUAL = 1  # the best of a few, improved: the first plan (first_plan.py)
    FULL = 2  # the best of every order and every way down, improved (descent.py)


def ration_of(operators: int) -> int:
    """How many layouts a search for one limit may take."""
    return max(1, min(_WORK // operators, 100 + _WORK_PER_OPERATOR * operators))


def lowerable(moves: int, ration: int) -> bool:
    """Whether a way down to where so many tensors are moved or made again may end within this many layouts.

    A layout takes a few tens of them at best, and as many again are laid out that do not help: measured on residual
    networks, 10,000 operators take 30 layouts for 1,100 moves.
    """
    return 2 * moves <= _TOGETHER * ration


def manners_of(*, drops: bool) -> tuple[Manner, ...]:
    """Ways to weigh lanes against waits, and to take many tensors at once or the best of a few."""
    heedless = Manner(drops=drops, lane_price=0.02, tried=1, together=64, surprise=1.0)
    return (
        Manner(drops=drops, lane_price=0.02, tried=4, together=16),
        heedless,
        Manner(drops=drops, lane_price=0.02, tried=1, together=64, careful=True),
        Manner(drops=drops, lane_price=0.1, tried=1, together=16),
        Manner(drops=drops, lane_price=0.02, tried=2),
        Manner(drops=drops, lane_price=0.0, tried=6),
    )


Heed = Callable[[], None]  # called before each piece of a search, which ends with what it raises


def unhurried() -> None:
    """Nobody has anything more urgent to do."""


class Descent:
    """The way down from the peak of doing nothing to one limit, step by step."""

    def __init__(
        self, orders: Orders, top: Rung, limit_bytes: int, *, drops: bool, work: int = 1, heed: Heed = unhurried
    ) -> None:
        self._heed = heed
        self._orders, self._top, self._limit_bytes = orders, top, limit_bytes
        self._drops = drops
        self._ration = work * ration_of(orders.first[0].operators)

    def best(self) -> Rung:
        """The fastest plan found within the limit, or the least memory where none is."""
        rungs = self._lowered_in_turn()
        rungs += self._lowered_in_stages({rung.order for rung in rungs})
        rungs = rungs or self._once_more()
        if not rungs:
            return self._pressed()
        if self._costs_nothing(rungs):
            return fastest(rungs)
        starts = [fastest(r for r in rungs if r.order == order) for order in sorted({r.order for r in rungs})]
        found = [self._settled(self._bettered(start)) for start in starts]
        hard = all(rung.order not in self._orders.loose for rung in rungs)  # where most may be made again
        if hard or fastest(found).iteration_ns > _CLOSE * self._top.iteration_ns:
            found += [rung for rung in (self._pressed(),) if rung.peak_bytes <= self._limit_bytes]
        return fastest(found)

    def _lowered_in_turn(self) -> list[Rung]:
        """What the manners find in every order, while there is work left."""
        rungs: list[Rung] = []
        spent = 0
        for number, manner in enumerate(manners_of(drops=self._drops)):
            for order, search in enumerate(self._orders.first):
                enough = number > 0 and spent > _TRIES * self._ration
                if rungs and (self._costs_nothing(rungs) or enough):
                    return rungs
                start = search.layouts
                self._heed()
                rungs += self._lowered(order, manner, self._ration)
                spent += search.layouts - start
        return rungs

    def _lowered_in_stages(self, reached: set[int]) -> list[Rung]:
        """From one limit to the next, improved each time, where most may be made again and no manner came down.

        What is made again needs memory itself, so a greedy way down ends where each step alone makes room for none.
        A good plan for a little more memory is seldom such an end.
        """
        return [rung for order in self._orders.loose if order not in reached for rung in self._staged(order)]

    def _staged(self, order: int) -> list[Rung]:
        search = self._orders.search(order)
        search.clear()
        for stage, fraction in enumerate(_STAGES):
            limit_bytes = self._limit_bytes + round(fraction * (self._top.peak_bytes - self._limit_bytes))
            if not self._stepped(search, limit_bytes, seed=search.operators + stage):
                return []
        return [rung_of(order, search)]

    def _stepped(self, search: StepSearch, limit_bytes: int, *, seed: int) -> bool:
        """A little lower, and improved; where that is not found, from another plan as good as this one."""
        first = manners_of(drops=self._drops)[0]
        above_bytes = search.peak_bytes
        for attempt in range(_STARTS):
            before = search.choices
            self._heed()
            if search.lower(limit_bytes, self._patient, most=_PATIENT * self._ration):
                search.prune(limit_bytes, PRUNED)
                search.improve(limit_bytes, first, most=self._ration, seed=seed)
                return True
            search.choose(before)
            search.improve(above_bytes, self._patient, most=self._ration, seed=seed + _STARTS * (attempt + 1))
        return False

    def _once_more(self) -> list[Rung]:
        """With more patience, where no manner came down."""
        orders = range(len(self._orders.first))
        return [rung for order in orders for rung in self._lowered(order, self._patient, _PATIENT * self._ration)]

    def _lowered(self, order: int, manner: Manner, most: int) -> list[Rung]:
        self._heed()
        search = self._orders.search(order)
        search.clear()
        return self._pruned(order, search) if search.lower(self._limit_bytes, manner, most=most) else []

    def _pruned(self, order: int, search: StepSearch) -> list[Rung]:
        search.prune(self._limit_bytes, PRUNED)
        return [rung_of(order, search)]

    # --- going on from a plan ---------------------------------------------------------------------------------

    def _bettered(self, start: Rung) -> Rung:
        """The fastest of what improving it in several manners leads to."""
        first = manners_of(drops=self._drops)[0]
        improved = [self._improved(start, (first,)), self._improved(start, (self._patient,))]
        best = fastest(improved)
        if best.iteration_ns < _CLOSE * self._top.iteration_ns:
            improved += self._copying(best)
        return fastest((*improved, *self._exchanged(fastest(improved))))

    def _improved(self, rung: Rung, manners: Sequence[Manner]) -> Rung:
        search = self._orders.search(rung.order)
        search.choose(list(rung.choices))
        for number, manner in enumerate(manners):
            self._heed()
            search.improve(self._limit_bytes, manner, most=_DEEP * self._ration, seed=search.operators + number)
        return rung_of(rung.order, search)

    def _copying(self, best: Rung) -> list[Rung]:
        """Where next to nothing is lost, what is left may be what was made again: other plans that do less of it."""
        found = [self._improved(best, (swapping(0.1),))]
        mixed = Manner(drops=self._drops, lane_price=0.02, tried=4, together=16)
        for manner in _CAREFUL:
            if self._costs_nothing(found):
                break
            for rung in self._lowered(best.order, manner, _DEEP * self._ration):
                found.append(self._improved(rung, (mixed, swapping(0.1))))
        return found

    def _exchanged(self, rung: Rung) -> list[Rung]:
        """Laid into the limit, and something else chosen here and there."""
        self._heed()
        search = self._orders.search(rung.order)
        search.choose(list(rung.choices))
        if not search.fill(self._limit_bytes):
            return []
        search.exchange(drops=self._drops, most=self._ration)
        return [rung_of(rung.order, search)]

    def _settled(self, rung: Rung) -> Rung:
        """Gone on from in the order in which nothing waits for the iteration's end without need."""
        for _ in range(SETTLINGS):
            order = self._orders.settled(rung)
            if order == rung.order or self._costs_nothing((rung,)):
                break
            best = fastest((rung, *self._carried(rung, order)))
            if best is rung:
                break
            rung = best
        return rung

    def _carried(self, rung: Rung, order: int) -> list[Rung]:
        """What becomes of the same choices in another order."""
        search = self._orders.search(order)
        carried = Rung(
            order=order,
            peak_bytes=rung.peak_bytes,
            iteration_ns=rung.iteration_ns,
            lane_ns=rung.lane_ns,
            choices=tuple(carried_over(self._orders.chosen(rung), search)),
        )
        try:
            self._orders.chosen(carried)
        except ValueError:  # what an update that waited kept there would have to be made again, too
            return []
        found = self._exchanged(carried)
        if self._orders.chosen(carried).lower(self._limit_bytes, self._patient, most=self._ration):
            (pruned,) = self._pruned(order, search)
            found.append(self._improved(pruned, (self._patient,)))
            found += self._exchanged(found[-1])
        return found

    # --- little memory ----------------------------------------------------------------------------------------

    def _pressed(self) -> Rung:
        """Little memory: making things again needs some itself, so first everything that must is swapped.

        Then making things again instead is an exchange. The least memory is swapping everything.
        """
        near_bytes = self._limit_bytes + round(NEAR * (self._top.peak_bytes - self._limit_bytes))
        orders = self._orders.loose
        found: list[Rung] = []
        for order in orders:
            found += self._squeezed(order, self._limit_bytes, swapping(1.0))
            found += self._squeezed(order, near_bytes, self._patient)
        if not found:
            search = self._orders.search(orders[-1])
            search.exhaust()
            search.prune(self._limit_bytes, self._ration)
            return rung_of(orders[-1], search)
        found += [other for rung in tuple(found) for other in self._exchanged(rung)]
        found += self._exchanged(fastest(found))
        return self._settled(fastest(found))

    def _squeezed(self, order: int, near_bytes: int, manner: Manner) -> list[Rung]:
        """Lowered as far as that goes, and pressed below the limit from there."""
        self._heed()
        search = self._orders.search(order)
        search.clear()
        search.lower(near_bytes, manner, most=self._ration)
        return self._pruned(order, search) if search.press(self._limit_bytes, most=self._ration) else []

    @property
    def _patient(self) -> Manner:
        return patient(drops=self._drops)

    def _costs_nothing(self, rungs: Iterable[Rung]) -> bool:
        return any(rung.iteration_ns <= self._top.iteration_ns for rung in rungs)


def patient(*, drops: bool) -> Manner:
    """The way to lower a peak that takes one tensor at a time, the better of two candidates."""
    return Manner(drops=drops, lane_price=0.1, tried=2)


def swapping(lane_price: float) -> Manner:
    """The way to lower a peak by swaps alone."""
    return Manner(drops=False, lane_price=lane_price, tried=1, together=16)
