"""Check the lines that show the progress of jobs and devices, and when a line is printed."""

from typing import Any

from indb_tensile.cli.line_filter import PrintedLines
from indb_tensile.cli.progress import ProgressSample, device_line, lines

MIB = 1 << 20
DEVICE: dict[str, Any] = {
    "worker_id": 3,
    "used_bytes": MIB,
    "high_water_bytes": 2 * MIB,
    "budget_bytes": 4 * MIB,
    "busy_percent": None,
    "outside_bytes": None,
}


def test_device_without_a_driver_shows_its_memory() -> None:
    assert device_line(DEVICE) == "device 3: 1.0 MB in use, most 2.0 MB, budget 4.0 MB"


def test_gpu_also_shows_the_load_from_its_driver() -> None:
    device = DEVICE | {"busy_percent": 80, "outside_bytes": 3 * MIB}
    assert device_line(device) == f"{device_line(DEVICE)}, 3.0 MB beside it, 80 % busy"


def test_one_of_several_devices_has_its_name_its_host_and_its_jobs() -> None:
    device = DEVICE | {"device_name": "cuda:1", "host": "a", "jobs": [5, 7]}
    assert device_line(device, named=True) == device_line(DEVICE).replace("3:", "3 (cuda:1 on a) with jobs 5, 7:")


JOB: dict[str, Any] = {
    "job_id": 7,
    "model": "digits",
    "state": "running",
    "phase": "training",
    "waits_for": None,
    "error": None,
    "epoch": 1,
    "epochs": 100,
    "loss": 1.0,
    "percent": 0.0,
    "eta_s": 600.0,
    "eta_earliest_s": None,
    "metric_name": None,
    "metric": None,
    "used_bytes": MIB,
    "granted_bytes": 2 * MIB,
}


def printed(samples: list[tuple[float, dict[str, Any]]]) -> list[tuple[float, str]]:
    """Return the lines about a job with these changes, and the second at which each line is printed."""
    printed_lines = PrintedLines()
    return [
        (at_s, text)
        for at_s, changes in samples
        for text in lines(printed_lines, ProgressSample(jobs=[JOB | changes], devices=[]), at_s)
    ]


def test_fast_training_prints_a_line_for_each_tenth() -> None:
    """One hundred epochs take 20 s. The phase alternates between training and validating."""
    samples = [
        (
            0.1 * n,
            {"percent": n / 2, "epoch": 1 + n // 2, "phase": ("training", "validating")[n % 2], "loss": 1 / (n + 1)},
        )
        for n in range(200)
    ]
    assert [text.split("%")[0].split()[-1] for _, text in printed(samples)] == [str(10 * n) for n in range(10)]


def test_slow_training_prints_a_line_every_half_minute_at_most() -> None:
    samples = [(2.0 * n, {"percent": n / 1000, "loss": 1 / (n + 1)}) for n in range(300)]
    assert [at_s for at_s, _ in printed(samples)] == [30.0 * n for n in range(20)]


def test_unchanged_progress_is_printed_once() -> None:
    assert len(printed([(2.0 * n, {}) for n in range(300)])) == 1


def test_every_phase_and_the_end_are_printed_at_once() -> None:
    phases = [("queued", None), ("starting", "reading"), ("starting", "capturing"), ("running", "training")]
    phases += [("running", "publishing"), ("succeeded", None)]
    samples = [(0.25 * n, {"state": state, "phase": phase}) for n, (state, phase) in enumerate(phases)]
    assert [text.split()[3] for _, text in printed(samples)] == [
        "queued", "reading", "capturing", "training", "publishing", "succeeded"]  # fmt: skip


def test_device_is_printed_every_half_minute_at_most() -> None:
    printed_lines = PrintedLines()
    samples = [(2.0 * n, ProgressSample(jobs=[], devices=[DEVICE | {"used_bytes": n * MIB}])) for n in range(31)]
    assert [at_s for at_s, look in samples if lines(printed_lines, look, at_s)] == [0.0, 30.0, 60.0]


def test_a_set_is_printed_when_it_begins_and_when_it_is_first_measured() -> None:
    begun = {"jobs": [7, 8, 9], "foretold": 1.625, "measured": None}
    sets = [begun, begun | {"foretold": 1.7}, begun | {"measured": 1.84}, begun | {"measured": 1.9}]
    printed_lines = PrintedLines()
    samples = [ProgressSample(jobs=[], devices=[], sets=[row]) for row in sets]
    assert [lines(printed_lines, look, float(n)) for n, look in enumerate(samples)] == [
        ["jobs 7, 8 and 9 side by side: throughput foretold 1.62, in turns 1"],
        [],
        ["jobs 7, 8 and 9 side by side: throughput 1.84, foretold 1.62, in turns 1"],
        [],
    ]


def test_early_stopping_shows_the_shortest_and_the_longest_remaining_time() -> None:
    ((_, plain),) = printed([(0.0, {})])
    ((_, stopped_early),) = printed([(0.0, {"eta_earliest_s": 65.0})])
    assert "ETA 10:00  " in plain
    assert "ETA 1:05 to 10:00  " in stopped_early
