"""The bars that sharing a device has to meet against its rivals, computed from the rounds of `bench share`.

A ratio compares two runs of the same round, so that both met the same machine, and the median over the rounds counts.
The best rival is the one with which the ratio is worst.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from indb_tensile.bench.harness.share.share_measures import RunMeasures
from indb_tensile.bench.harness.share.share_methods import ANY_PRICE, COMPLETION, FIRST_FIT, RIVALS, TURNS, UNLIMITED
from indb_tensile.bench.harness.share.share_mixes import AnttBar, Mix

CLOSE = 1.03
FORETOLD_ERROR = 0.10

Rounds = Mapping[str, Sequence[RunMeasures]]  # the runs of each method, in the order of the rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBar:
    """A bar of a mix: what is compared, the figure, what is asked, and whether that is met (None: printed only)."""

    mix: str
    threads: int
    text: str
    figure: float
    asked: str
    met: bool | None


def judged_method(methods: Sequence[str]) -> str | None:
    """Return the method to judge: the one that foretells completion, or the admission that came before it."""
    return next((name for name in (COMPLETION, ANY_PRICE) if name in methods), None)


def judge_mix(mix: Mix, threads: int, rounds: Rounds) -> Iterator[ShareBar]:
    """Yield the bars of a mix that can be computed from the methods that ran."""
    ours = judged_method(list(rounds))
    if ours is None:
        return
    for text, figure, asked, met in _verdicts(mix, threads, rounds, ours):
        yield ShareBar(mix=mix.name, threads=threads, text=text, figure=figure, asked=asked, met=met)


def _verdicts(mix: Mix, threads: int, rounds: Rounds, ours: str) -> Iterator[tuple[str, float, str, bool | None]]:
    rivals = [rival for rival in RIVALS if rival in rounds and rival != ours]
    bars = mix.bars
    if rivals:
        rival, ratio = _best_rival(rounds, ours, rivals, "makespan_s")
        yield f"makespan over that of {rival}", ratio, f"at most {bars.makespan}", ratio <= bars.makespan
        rival, ratio = _best_rival(rounds, ours, rivals, "antt")
        yield f"ANTT over that of {rival}", ratio, bars.antt.value, _antt_met(bars.antt, ratio)
    if threads == 1 and bars.speedup is not None:
        for rival in (name for name in (TURNS, FIRST_FIT) if name in rounds):
            ratio = _ratio(rounds, rival, ours, "makespan_s")
            yield f"times as fast as {rival}", ratio, f"at least {bars.speedup}", ratio >= bars.speedup
    if threads == 1 and bars.of_unlimited is not None and UNLIMITED in rounds:
        ratio = _ratio(rounds, ours, UNLIMITED, "stp_measured")
        text = f"STP over that of {mix.unlimited} without a limit"
        yield text, ratio, f"at least {bars.of_unlimited}", ratio >= bars.of_unlimited
    if all(run.stp_foretold is not None for run in rounds[ours]):
        ratio = median((run.stp_foretold or 0.0) / (run.stp_measured or 1.0) for run in rounds[ours])
        met = abs(ratio - 1) <= FORETOLD_ERROR
        yield "foretold over measured STP", ratio, f"within {FORETOLD_ERROR:.0%} of 1", met
    errors = [run.sets_error for run in rounds[ours] if run.sets_error is not None]
    if errors:
        yield "the same in undisturbed iterations", median(errors), f"within {FORETOLD_ERROR:.0%} of 1", None


def _best_rival(rounds: Rounds, ours: str, rivals: Sequence[str], measure: str) -> tuple[str, float]:
    ratios = {rival: _ratio(rounds, ours, rival, measure) for rival in rivals}
    return max(ratios.items(), key=lambda item: (item[1], item[0]))


def _ratio(rounds: Rounds, above: str, below: str, measure: str) -> float:
    """Return the median over the rounds of one method's measure over another's."""
    pairs = zip(rounds[above], rounds[below], strict=True)
    return float(median(getattr(upper, measure) / getattr(lower, measure) for upper, lower in pairs))


def _antt_met(bar: AnttBar, ratio: float) -> bool | None:
    match bar:
        case AnttBar.CLOSE:
            return ratio <= CLOSE
        case AnttBar.LOWER:
            return ratio < 1
        case AnttBar.PRINTED:
            return None
