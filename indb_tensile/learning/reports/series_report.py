"""The data report of a training that forecasts: its series, what was detected, and baselines beside its metrics."""

from collections.abc import Iterator, Mapping
from typing import Any

from indb_tensile.learning.encoding.forecast_encoding import ErrorSums
from indb_tensile.learning.forecasting.forecast_table import ForecastRows
from indb_tensile.learning.reports.report_facts import Fact

_MANY = 0.2  # share of steps that are gaps, from which on a warning says so


def report_series(rows: ForecastRows) -> tuple[Fact, ...]:
    """Return what is known of the series before training."""
    return tuple(_facts(rows))


def report_baselines(
    metric: str, metrics: Mapping[str, float], baselines: Mapping[str, ErrorSums]
) -> tuple[Fact, ...]:
    """Compare the metric on the test windows with that of each baseline."""
    if metric not in metrics:
        undefined = f"{metric} cannot be computed on the test windows, so versions cannot be compared"
        return (
            Fact(section="result", subject=metric, fact="on the test windows", value="undefined", warning=undefined),
        )
    ours = metrics[metric]
    facts = [Fact(section="result", subject=metric, fact="on the test windows", value=f"{ours:.4g}")]
    for name, sums in baselines.items():
        theirs = sums.metrics().get(metric)
        if theirs is None or (metric == "pinball"):
            continue
        words = name.replace("_", " ")
        warning = None
        if theirs <= ours:
            warning = (
                f"{metric} {ours:.4g} is no better than that of the {words} forecast ({theirs:.4g}), which needs no "
                "training: prefer it, or give the model more history, known columns or another window"
            )
        facts.append(
            Fact(
                section="result",
                subject=metric,
                fact=f"of the {words} forecast",
                value=f"{theirs:.4g}",
                warning=warning,
            )
        )
    return tuple(facts)


def best_baseline(metric: str, judged: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the figure of the simple forecast with the best metric, or the reason why there is none."""
    known = {name: own for name, own in judged.items() if metric in own and metric != "pinball"}
    if not known:
        return {"reason": f"simple forecasts have no {metric}"}
    name = min(known, key=lambda each: known[each][metric])
    metrics = {own: value for own, value in known[name].items() if own not in ("pinball", "coverage")}
    return {"metrics": metrics, "name": name.replace("_", " ")}


def _facts(rows: ForecastRows) -> Iterator[Fact]:
    recipe, grid = rows.recipe, rows.grid
    facts = rows.facts()
    steps = int(grid.lengths.sum())
    yield Fact(section="rows", fact="series", value=str(len(grid)))
    yield Fact(section="rows", fact="steps", value=f"{steps} of {recipe.steps.text}")
    warning = None
    if grid.filled > _MANY * steps:
        warning = (
            f"{grid.filled / steps:.0%} of the steps have no value and were filled: a longer step may fit better"
        )
    yield Fact(section="rows", fact="steps without a value", value=str(grid.filled), warning=warning)
    if rows.skipped:
        short = f"{rows.skipped} series have fewer than {recipe.fewest + recipe.horizon} steps and take no part"
        yield Fact(section="rows", fact="series that are too short", value=str(rows.skipped), warning=short)
    season = str(recipe.season) if recipe.season > 1 else "none"
    yield Fact(section="split", fact="season in steps", value=season)
    yield Fact(section="split", fact="window in steps", value=str(recipe.window))
    yield Fact(section="split", fact="horizon in steps", value=str(recipe.horizon))
    for part, count in facts["windows"].items():
        yield Fact(section="split", subject=part, fact="windows", value=str(count))
