"""The result of a training of pairs in the data report: how items are ranked, beside their popularity."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from indb_tensile.learning.encoding.pair_encoding import MOST_JUDGED, Numbers
from indb_tensile.learning.reports.report_facts import Fact


def report_popularity(
    metric: str, metrics: Mapping[str, float], baseline: Mapping[str, Any], items: Numbers
) -> tuple[Fact, ...]:
    """Compare the metric with that of a ranking by popularity. `items` are the items of the test rows."""
    if metric not in metrics:
        undefined = f"{metric} cannot be computed on the test rows, so versions cannot be compared"
        return (
            Fact(section="result", subject=metric, fact="on the test rows", value="undefined", warning=undefined),
        )
    ours, theirs = metrics[metric], baseline["metrics"][metric]
    judged = items[:MOST_JUDGED]
    warning = None
    if ours <= theirs:
        warning = (
            f"{metric} {ours:.4g} is no better than a ranking of the items by how often they occur in the training "
            f"rows ({theirs:.4g}): rank by popularity instead, or train with more columns or more rows"
        )
    return (
        Fact(section="result", fact="items among which the item of each test row is ranked",
             value=str(len(np.unique(judged)))),
        Fact(section="result", subject=metric, fact="on the test rows", value=f"{ours:.4g}"),
        Fact(section="result", subject=metric, fact="of the most popular items", value=f"{theirs:.4g}",
             warning=warning),
    )  # fmt: skip
