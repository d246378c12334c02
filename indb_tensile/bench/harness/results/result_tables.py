"""Prints rows of the benchmarks of policies: a table for each case, and which rivals our policy covers.

    python -m indb_tensile.bench policies --recorded FILE … --markdown

prints tables for a document from rows that --json printed; so do `multi` and `batch`.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from indb_tensile.bench.harness.results.rows import (
    MIB,
    SHARES,
    TARGETS,
    Row,
    best_eor,
    best_msr,
    covered,
    group_by,
    phased,
    sound,
)
from indb_tensile.scheduler.policies import DEFAULT_POLICY

Remarks = Callable[[Sequence[Row]], Iterator[str]]  # further lines to print about rows


def verdict(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Yield for each case and rival whether our policy covers all of the rival's points. `names` identify a case."""
    for case, case_rows in group_by(rows, *names).items():
        curves = group_by(case_rows, "policy")
        own = [policy for (policy,) in curves if policy in (DEFAULT_POLICY, phased(DEFAULT_POLICY))]
        ours = [row for policy in own for row in curves.pop((policy,))]
        for (rival,), points in curves.items() if ours else ():
            open_points = [row for row in sound(points) if not covered(row, ours)]
            yield f"{case_name(names, case)}: {_coverage(str(rival), points, open_points, ours)}"
        yield from (f"{case_name(names, case)}: {text}" for text in _fastest(ours, curves))


def case_name(names: Sequence[str], case: tuple[Any, ...]) -> str:
    """Return a case's name, from the values of the fields `names` that identify it."""
    return ", ".join(
        f"{name} {value}" if isinstance(value, int | float) else str(value)
        for name, value in zip(names, case, strict=True)
    )


def _coverage(rival: str, points: Sequence[Row], open_points: Sequence[Row], ours: Sequence[Row]) -> str:
    if not open_points:
        return f"covers {rival} ({len(points)} points)"
    shown = ", ".join(_uncovered_point(row, ours) for row in open_points)
    return f"NOT COVERED: {rival} at {len(open_points)} of {len(points)} points: {shown}"


def _uncovered_point(row: Row, ours: Sequence[Row]) -> str:
    """Describe a point, our least overhead within its memory, and our largest saving within its overhead."""
    eor, msr = best_eor(ours, row["peak_bytes"]), best_msr(ours, row["eor"])
    near = [f"EOR {eor:.4f} within its memory" if eor is not None else "nothing within its memory"]
    near.append(f"MSR {msr:.4f} within its time" if msr is not None else "nothing within its time")
    return f"EOR {row['eor']:.4f} MSR {row['msr_liveness']:.4f} (ours: {', '.join(near)})"


def _fastest(ours: Sequence[Row], curves: dict[tuple[Any, ...], list[Row]]) -> Iterator[str]:
    """Yield which policy is fastest within each share of the liveness peak."""
    for share in SHARES if ours else ():
        budget_bytes = share * ours[0]["liveness_peak_bytes"]
        own = best_eor(ours, budget_bytes)
        rivals = {rival: best_eor(points, budget_bytes) for (rival,), points in curves.items()}
        reached = {rival: eor for rival, eor in rivals.items() if eor is not None}
        if own is None and not reached:
            continue
        best = min(reached, key=lambda rival: (reached[rival], rival), default=None)
        rival_figure = "no rival gets there" if best is None else f"best rival {best} {reached[best]:.4f}"
        first = own is not None and all(own <= eor for eor in reached.values())
        own_figure = "nothing" if own is None else f"EOR {own:.4f}"
        place = "fastest" if first else "NOT FASTEST"
        yield f"{place} within {share:.0%} of the liveness peak: {own_figure}; {rival_figure}"


# --- tables ------------------------------------------------------------------------------------------------------


def summary(policy: str, rows: Sequence[Row]) -> dict[str, str]:
    """Return one line of a table: the results of one policy on one case."""
    columns = {"policy": policy}
    for base in ("liveness", "vanilla"):
        for target in TARGETS:
            saved = best_msr(rows, target, base)
            columns[f"MSR {base} at {target:.2f}"] = "-" if saved is None else f"{saved:.1%}"
    least = min(rows, key=lambda row: (row["peak_bytes"], row["eor"]))
    return {
        **columns,
        "best CBR": f"{max(row['cbr'] for row in rows):.3f}",
        "least MB": f"{least['peak_bytes'] / MIB:,.0f}",
        "at EOR": f"{least['eor']:.2f}",
        "floor MB": f"{rows[0]['floor_bytes'] / MIB:,.0f}",
        "floor planned": f"{min(row['planned_floor_bytes'] for row in rows) / MIB:,.0f}",
        "plan ms": f"{median(row['planning_ms'] for row in rows):,.1f}",
        "most": f"{max(row['planning_ms'] for row in rows):,.1f}",
        "faults": str(sum(len(row["faults"]) for row in rows)),
    }


def print_tables(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Print a table for each case, identified by the fields `names`, with a line for each policy."""
    console = Console(width=200, highlight=False)
    for case, case_rows in group_by(rows, *names).items():
        print_table(console, _title(names, case, case_rows), _lines(case_rows))


def markdown(rows: Sequence[Row], names: Sequence[str], remarks: Remarks) -> Iterator[str]:
    """Yield the same tables in Markdown, each with its verdict and remarks, and the dates and hosts of its plans."""
    for case, case_rows in group_by(rows, *names).items():
        yield f"### {_title(names, case, case_rows)}\n"
        lines = _lines(case_rows)
        yield f"| {' | '.join(lines[0])} |"
        yield f"|---|{'---:|' * (len(lines[0]) - 1)}"
        yield from (f"| {' | '.join(columns.values())} |" for columns in lines)
        yield ""
        texts = (*verdict(case_rows, names), *remarks(case_rows))
        yield from (f"- {text.removeprefix(f'{case_name(names, case)}: ')}" for text in texts)
        planned = sorted({(row["date"], row["host"]) for row in case_rows if "host" in row})
        yield from (f"- planned on {day} by {host}" for day, host in planned)
        yield ""


def _lines(case_rows: Sequence[Row]) -> list[dict[str, str]]:
    return [summary(str(policy), points) for (policy,), points in group_by(case_rows, "policy").items()]


def _title(names: Sequence[str], case: tuple[Any, ...], case_rows: Sequence[Row]) -> str:
    peaks = [f"{base} {case_rows[0][f'{base}_peak_bytes'] / MIB:,.0f} MB" for base in ("vanilla", "liveness")]
    return f"{case_name(names, case)}: {', '.join(peaks)}"


def print_table(console: Console, title: str, lines: Sequence[dict[str, str]]) -> None:
    """Print one table. The first column is aligned to the left."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(lines[0]):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for columns in lines:
        table.add_row(*columns.values())
    console.print(table)
    console.print()
