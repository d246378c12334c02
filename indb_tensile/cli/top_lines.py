"""The texts of `tensile top`: memory bars, rows of jobs, and what is said of one job."""

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from indb_tensile.monitor.live_figures import Row
from indb_tensile.sizes import size

# Colours that people with colour-blindness tell apart (Okabe and Ito 2008), by the job's number so that they stay.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7a6fc0")
_OTHERS = "#8a94a3"

COLUMNS = (
    ("job", "JOB"),
    ("model", "MODEL"),
    ("owner", "OWNER"),
    ("device", "DEVICE"),
    ("activity", "ACTIVITY"),
    ("progress", "PROGRESS"),
    ("used", "USED"),
    ("planned", "PLANNED"),
    ("iteration", "ITERATION"),
    ("stall", "STALL"),
    ("loss", "LOSS"),
    ("ends", "ENDS IN"),
    ("waits", "WAITS FOR"),
)


def device_lines(figures: Row, width: int) -> Text:
    """Return the devices: for each one a line of figures, and a bar of its memory by job."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for device in figures["devices"]:
        jobs = [job for job in figures["jobs"] if job["worker_id"] == device["worker_id"]]
        state = "" if device["alive"] else "  (stopped)"
        text.append(f"{device_title(device)} on {device['host']}{state}", style="bold")
        text.append(
            f"  {_size(device['used_bytes'])} used, {_size(device['granted_bytes'])} planned, "
            f"{_size(device['budget_bytes'])} budget, {_size(device['host_bytes'])} on the host"
        )
        if device["busy_percent"] is not None:
            text.append(f", GPU {device['busy_percent']} % busy")
        copied = _copied_bytes_per_s(jobs)
        if copied:
            text.append(f", copies {_size(copied)}/s each way")
        text.append("\n")
        if device["alive"]:
            text.append_text(memory_bar(device, jobs, width))
            text.append("\n")
    if not figures["devices"]:
        text.append("No controller has reported a device within the last hour: start one with tensile up.\n")
    for beside in figures["sets"]:
        jobs_text = ", ".join(str(job) for job in beside["jobs"])
        text.append(f"side by side: jobs {jobs_text}; throughput {_number(beside['foretold'])} foretold, ")
        text.append(f"{_number(beside['measured'])} measured (taking turns: 1)\n")
    text.right_crop(1)
    return text


def memory_bar(device: Row, jobs: Iterable[Row], width: int) -> Text:
    """Return a bar as wide as the budget: of each job what it uses (full) and what is only planned (pale)."""
    width = max(10, width)
    scale = width / max(1, device["budget_bytes"])
    bar = Text()
    known = 0
    for job in jobs:
        style = _colour(job["job_id"])
        end = round((known + job["granted_bytes"]) * scale)
        full = min(end, round((known + job["used_bytes"]) * scale)) - len(bar)
        bar.append("█" * max(0, full), style=style)
        bar.append("░" * max(0, end - len(bar)), style=style)
        known += job["granted_bytes"]
    bar.append("▒" * max(0, round(device["granted_bytes"] * scale) - len(bar)), style=_OTHERS)
    bar.append("·" * max(0, width - len(bar)), style="dim")
    bar.truncate(width)
    return bar


def job_rows(figures: Row) -> list[Row]:
    """Return the rows of the table: jobs on devices, then waiting jobs in their order. Each has all `COLUMNS`."""
    titles = {device["worker_id"]: device["device_name"] or "" for device in figures["devices"]}
    rows = [_running_row(job, titles.get(job["worker_id"], "")) for job in figures["jobs"]]
    shown = {row["job_id"] for row in rows}
    return rows + [_waiting_row(job) for job in figures["queue"] if job["job_id"] not in shown]


def job_text(figures: Row) -> Text:
    """Return all about one job, as several paragraphs."""
    job = figures["job"]
    text = Text()
    text.append(f"{job['model']}", style="bold")
    text.append(f" of {job['owner']} on {job['relation']}: {job['state']}")
    text.append(f", {job['phase']}\n" if job["phase"] else "\n")
    if job["error_message"]:
        text.append(f"{job['error_message']}\n", style="red")
        for part in ("error_detail", "error_hint"):
            if job[part]:
                text.append(f"{job[part]}\n")
    if job["waits_for"]:
        text.append(f"waits for {job['waits_for']}\n")
    _heading(text, "epochs")
    for epoch in figures["epochs"][-8:]:
        metrics = "  ".join(f"{name} {_number(value)}" for name, value in sorted(epoch["metrics"].items()))
        text.append(f"{epoch['epoch']:>6}  loss {_number(epoch['loss'])}  ")
        text.append(f"valid_loss {_number(epoch['valid_loss'])}  {metrics}\n")
    _heading(text, "plans, the newest first: planned and measured")
    for plan in figures["plans"][:8]:
        text.append(
            f"{plan['attempt']}.{plan['generation']:<4} {plan['reason']}: peak {_size(plan['predicted_peak_bytes'])} "
            f"and {_size(plan['measured_peak_bytes'])} of {_size(plan['liveness_peak_bytes'])}; iteration "
            f"{_milliseconds(plan['predicted_iteration_ms'])} and {_milliseconds(plan['measured_iteration_ms'])}; "
            f"{plan['swaps']} swaps, {plan['recomputed']} recomputed\n"
        )
    _heading(text, "beside other jobs")
    for beside in figures["sharing"][:5]:
        jobs = ", ".join(str(other) for other in beside["beside"]) or "alone"
        text.append(
            f"{jobs}: {_number(beside['stp_foretold'])} foretold, {_number(beside['stp_measured'])} measured\n"
        )
    _heading(text, "events, the newest first")
    for event in figures["events"][:20]:
        text.append(f"{event['at'][:19].replace('T', ' ')}  {event['kind']}  {_detail(event['detail'])}\n")
    return text


def device_title(device: Row) -> str:
    """Return the kind of the device, after its name where the name has a number: `cuda:1 (cuda:NVIDIA H100)`."""
    name = device["device_name"] or ""
    return f"{name} ({device['device']})" if ":" in name else str(device["device"])


def _running_row(job: Row, device_name: str) -> Row:
    epochs = f"{job['epoch'] or 0}/{job['epochs']}" if job["epochs"] else ""
    percent = "" if job["percent"] is None or not job["epochs"] else f"{job['percent']:.0f} % {epochs}"
    return {
        "job_id": job["job_id"],
        "paused": bool(job["paused"]),
        "priority": job["priority"] or 0,
        "job": Text(str(job["job_id"]), style=_colour(job["job_id"])),
        "model": Text(job["model"]),
        "owner": Text(job["owner"]),
        "device": Text(device_name),
        "activity": Text("paused" if job["paused"] else job["phase"] or "predicting"),
        "progress": Text(percent),
        "used": Text(_size(job["used_bytes"])),
        "planned": Text(_size(job["granted_bytes"])),
        "iteration": Text(_milliseconds(job["measured_iteration_ms"] or job["predicted_iteration_ms"])),
        "stall": Text(_milliseconds(job["measured_stall_ms"])),
        "loss": Text(_number(job["loss"])),
        "ends": Text(_span(job["eta_s"])),
        "waits": Text(""),
    }


def _waiting_row(job: Row) -> Row:
    empty = dict.fromkeys(("device", "progress", "used", "planned", "iteration", "stall", "loss", "ends"), Text(""))
    return {
        **empty,
        "job_id": job["job_id"],
        "paused": job["paused"],
        "priority": job["priority"],
        "job": Text(str(job["job_id"])),
        "model": Text(job["model"]),
        "owner": Text(job["owner"]),
        "activity": Text("paused" if job["paused"] else job["phase"] or job["state"]),
        "waits": Text(f"{job['waits_for'] or ''} ({_span(job['waiting_s'])})"),
    }


def _copied_bytes_per_s(jobs: Iterable[Row]) -> float:
    rates: list[float] = [
        job["swapped_bytes"] * 1000 / iteration_ms
        for job in jobs
        if job["swapped_bytes"] and (iteration_ms := job["measured_iteration_ms"] or job["predicted_iteration_ms"])
    ]
    return sum(rates)


def _heading(text: Text, title: str) -> None:
    text.append(f"\n{title}\n", style="bold underline")


def _detail(detail: Any) -> str:
    if not isinstance(detail, dict):
        return "" if detail is None else str(detail)
    return "; ".join(f"{value}" if name == "message" else f"{name}: {value}" for name, value in detail.items())


def _colour(job: int) -> str:
    return _COLOURS[job % len(_COLOURS)]


def _size(value: float | None) -> str:
    return "-" if value is None else size(int(value))


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _span(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    value_s = max(0.0, value_s)
    if value_s < 120:
        return f"{value_s:.0f} s"
    return f"{value_s / 60:.0f} min" if value_s < 7200 else f"{value_s / 3600:.1f} h"
