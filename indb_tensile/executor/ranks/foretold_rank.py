"""Puts together what the simulator of ranks needs of one rank: captured step, plan, and the network's times."""

from collections.abc import Mapping, Sequence

from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.ranks.exchange_traffic import copy_loss_of, exchanges_on_network
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.network_times import GangNetwork
from indb_tensile.scheduler.timing.simulate_ranks import RankRun


def foretold_rank(
    step: CapturedStep,
    plan: Plan,
    latency_ns: Sequence[int],
    share: RankShare,
    network: GangNetwork,
    known: Mapping[str, tuple[int, int]],
    *,
    link: Link,
    host: str,
) -> RankRun:
    """Return a rank on this host that runs the step under the plan.

    `latency_ns` has the operators' own time, without other ranks. `known` has stored latencies, by signature.
    """
    own_ns, exchanges = exchanges_on_network(step, latency_ns, share, network, known)
    copy_loss = copy_loss_of((step,), network, known)
    run = JobRun(graph=step.graph, plan=plan, latency_ns=own_ns, copy_loss=copy_loss)
    return RankRun(run=run, exchanges=exchanges, link=link, host=host)
