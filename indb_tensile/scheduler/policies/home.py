"""HOME: retain, swap or recompute each feature map, by a particle swarm against a cost model, under a memory limit.

He et al., "HOME: A Holistic GPU Memory Management Framework for Deep Learning", section 3. The swarm (swarm.py)
searches for the fastest policy among those that the evaluator (feature_maps.py) finds within the limit. The
executor's rules (3.6): a swapped feature map leaves when the forward pass no longer needs it and is fetched for the
backward pass; a recomputed one is released at the same moment and made again when it is needed.

Where the paper is silent: the evaluator knows the load only by stages, so the best policies are also made into plans
and simulated, and the fastest within the limit is taken. If all are slightly over the limit, which the temporary
memory of operators can cause, the search is repeated once under a limit that is lower by the excess. Feature maps
below a thousandth of the peak are retained, because they make no difference. If there are very many, all but the
largest are retained: the paper's networks have one feature map for each layer, captured ones several. Jobs are
planned one by one. If operators cannot run again, HOME swaps or retains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from indb_tensile.scheduler.graph import OpIndex, StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import Gap, gaps, liveness_peak, need_index
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.division import demand, divide
from indb_tensile.scheduler.policies.feature_maps import Action, Evaluator, FeatureMap, feature_maps
from indb_tensile.scheduler.policies.swap_times import empty_load, schedule
from indb_tensile.scheduler.policies.swarm import Particle, search
from indb_tensile.scheduler.recomputation.recompute import Recomputation
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload

_SMALL_PART = 1000  # feature maps smaller than the peak divided by this are retained
# The most feature maps that are searched; the others are retained. The cost of a round grows with the square of this.
_MOST_MAPS = 320
_PARTICLES = 500  # section 3.3: 500 particles, 500 rounds
_ROUNDS = 500
_LEAST_PARTICLES = 16
_SWARM_WORK = 2_400_000  # particles times the square of the feature maps: limits the cost of a round
_WORK = 6_000_000  # evaluations times feature maps: limits the cost of the search
_JUDGED = 8  # number of policies that are made into plans


def home(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    cache: PlanCache | None = None,
) -> tuple[tuple[Plan, ...], ...]:
    """Return each job's plans under its part of the budget."""
    cache = PlanCache() if cache is None else cache
    jobs = [
        [_Graph(*pair, link, rewrites, cache) for pair in zip(w.graphs, w.latency_ns, strict=True)] for w in workloads
    ]
    reached = [max(graph.least_bytes for graph in graphs) for graphs in jobs]
    limits = divide([demand(w, r, cache) for w, r in zip(workloads, reached, strict=True)], budget_bytes)
    return tuple(tuple(graph.planned(limit) for graph in graphs) for graphs, limit in zip(jobs, limits, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """One policy as a plan, with its peak and its simulated time."""

    plan: Plan
    peak_bytes: int
    iteration_ns: int


class _Graph:
    """One graph whose feature maps are to be retained, swapped or recomputed."""

    def __init__(
        self, graph: StepGraph, latency_ns: tuple[int, ...], link: Link, rewrites: bool, cache: PlanCache
    ) -> None:
        self._cache = cache
        self._graph = graph
        self._latency_ns = latency_ns
        self._link = link
        self._most_bytes = liveness_peak(graph, cache)
        self._recomputation = Recomputation(graph, latency_ns, cache=cache) if rewrites else None
        small_bytes = self._most_bytes // _SMALL_PART
        self._maps = feature_maps(graph, self._recomputation, least_bytes=small_bytes, most=_MOST_MAPS)

    @property
    def least_bytes(self) -> int:
        """The peak without any feature map that is not in use at the moment."""
        return int(empty_load(self._graph, [m.gap for m in self._maps]).max())

    def planned(self, limit_bytes: int) -> Plan:
        """Return the fastest plan found within the limit; the plan with the lowest peak if none fits."""
        if self._most_bytes <= limit_bytes or not self._maps:
            return Plan(policy="home")
        judged_plans = self._judge(self._search(limit_bytes), limit_bytes)
        over_bytes = min(judged.peak_bytes for judged in judged_plans) - limit_bytes
        if 0 < over_bytes < limit_bytes:
            judged_plans += self._judge(self._search(limit_bytes - over_bytes), limit_bytes)
        return min(judged_plans, key=lambda j: (max(0, j.peak_bytes - limit_bytes), j.iteration_ns)).plan

    def _search(self, limit_bytes: int) -> tuple[Particle, ...]:
        count = len(self._maps)
        evaluator = Evaluator(self._graph, self._latency_ns, self._link, self._maps, limit_bytes=limit_bytes)
        starts = [_all(self._maps, Action.RETAIN), _all(self._maps, Action.SWAP), _all(self._maps, Action.RECOMPUTE)]
        different = 3**count if count < 6 else _PARTICLES
        return search(
            [tuple(map(int, m.choices)) for m in self._maps],  # plain integers hash and compare faster
            starts,
            evaluator,
            particles=min(_PARTICLES, different, max(_LEAST_PARTICLES, _SWARM_WORK // count**2)),
            rounds=_ROUNDS,
            evaluations=_WORK // count,
            enough=(0, evaluator.without_ns),
        )

    def _judge(self, policies: Sequence[Particle], limit_bytes: int) -> list[_Judged]:
        """Make the best policies into plans, and also those that release all they can."""
        extremes = (_all(self._maps, Action.SWAP), _all(self._maps, Action.RECOMPUTE))
        selected = dict.fromkeys(chain(policies[:_JUDGED], extremes))
        return [self._judged(policy, limit_bytes) for policy in selected]

    def _judged(self, policy: Particle, limit_bytes: int) -> _Judged:
        plan = self._plan(policy, limit_bytes)
        run = JobRun(graph=self._graph, plan=plan, latency_ns=self._latency_ns)
        (forecast,) = simulate((run,), self._link, cache=self._cache)
        return _Judged(plan=plan, peak_bytes=forecast.peak_bytes, iteration_ns=forecast.iteration_ns)

    def _plan(self, policy: Particle, limit_bytes: int) -> Plan:
        """Return the plan that the executor would follow under this policy."""
        pairs = list(zip(self._maps, policy, strict=True))
        dropped = [m.gap for m, action in pairs if action == Action.RECOMPUTE]
        swapped = [m.gap for m, action in pairs if action == Action.SWAP]
        rewritten = Plan(policy="home")
        if dropped and self._recomputation is not None:
            rewritten = replace(rewritten, executions=self._recomputation.order(dropped))
        graph = effective(self._graph, rewritten, self._cache)
        latency_ns = effective_latency(self._latency_ns, rewritten)
        chosen = longest_parts(graph, swapped, rewritten.executions, latency_ns)
        plan = schedule(graph, latency_ns, self._link, chosen, limit_bytes=limit_bytes, policy="home")
        return replace(plan, executions=rewritten.executions)


def longest_parts(
    graph: StepGraph, swapped: Sequence[Gap], executions: Sequence[Execution], latency_ns: Sequence[int]
) -> list[Gap]:
    """Return these gaps in the graph that runs. If a recomputation cuts a gap in two, return the part that takes
    longest.
    """
    place: dict[OpIndex, int] = {}
    for position, execution in enumerate(executions):
        place.setdefault(execution.operator, position)
    of_tensor: dict[int, list[Gap]] = {}
    for gap in gaps(graph):
        of_tensor.setdefault(gap.tensor, []).append(gap)
    longest = []
    for gap in swapped:
        first, last = place.get(gap.out_after, gap.out_after), place.get(gap.needed_by, gap.needed_by)
        parts = [p for p in of_tensor.get(gap.tensor, ()) if first <= p.out_after and p.needed_by <= last]
        if parts:
            longest.append(
                max(parts, key=lambda p: sum(latency_ns[p.out_after + 1 : need_index(p, len(latency_ns))]))
            )
    return longest


def _all(maps: Sequence[FeatureMap], action: Action) -> Particle:
    """Return the policy that applies this action to every feature map that allows it, and swaps the others unless it
    retains.
    """
    other = Action.RETAIN if action == Action.RETAIN else Action.SWAP
    return tuple(int(action if action in m.choices else other) for m in maps)
