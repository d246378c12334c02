"""The metrics of /metrics, for Prometheus: base units, and no names of jobs, models or users.

Each scrape reads the catalog anew, at most once a second, so the figures are those of all controllers, whichever
process answers. What a role may not see is missing from them: the role needs tensile_monitor.
"""

from collections.abc import Callable, Iterable
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.prediction_counts import BOUNDS, LATENCY
from indb_tensile.errors import TensileError
from indb_tensile.job import ENDED_STATES, JobState
from indb_tensile.monitor.live_figures import Row, rows
from indb_tensile.monitor.viewer import Viewer

_AGE_S = 1.0

# Name, meaning and column of each gauge of a device.
_DEVICE_GAUGES = (
    ("tensile_device_capacity_bytes", "Memory of the device.", "capacity_bytes"),
    ("tensile_device_budget_bytes", "Memory that jobs may use together.", "budget_bytes"),
    ("tensile_device_granted_bytes", "Memory that the plans of all jobs may use.", "granted_bytes"),
    ("tensile_device_used_bytes", "Memory that all jobs use.", "used_bytes"),
    ("tensile_device_host_bytes", "Pinned host memory of all jobs.", "host_bytes"),
    ("tensile_device_outside_bytes", "Memory in use outside the memory that jobs share.", "outside_bytes"),
    ("tensile_device_copied_bytes_per_second", "Rate at which plans copy, in each direction.", "copied"),
)
_USAGE_COUNTERS = (
    ("tensile_device_seconds", "Use of the devices: the larger share of compute or memory, over time.", "device_s"),
    ("tensile_memory_byte_seconds", "Device memory granted to jobs, over time.", "byte_s"),
    ("tensile_running_seconds", "Time in which jobs had device memory, summed over the jobs.", "running_s"),
)
# Name, meaning, name in tensile.totals and label of each counter of what all users do together.
_TOTAL_COUNTERS = (
    ("tensile_swapped_bytes", "Bytes that plans copied between device and host.", "swapped_bytes", "way"),
    (
        "tensile_stall_seconds",
        "Time in which jobs waited: for copies, or while others had a turn.",
        "stall_s",
        "cause",
    ),
    (
        "tensile_interruptions",
        "Attempts that were interrupted, by a fault of the job or by another.",
        "interruptions",
        "fault",
    ),
    ("tensile_predictions", "Rows that were predicted.", "predicted_rows", ""),
    ("tensile_prediction_faults", "Requests for predictions that services refused.", "prediction_faults", ""),
)


class CatalogCollector:
    """Reads the metrics through `read`, which runs a function on a connection to the catalog."""

    def __init__(self, read: Callable[[Callable[[Connection], Row]], Row]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Return all metrics. While the database is away, only `tensile_up`, which is 0."""
        up = GaugeMetricFamily("tensile_up", "1 if the catalog could be read.")
        try:
            figures = self._read(_figures)
        except (psycopg.Error, TensileError):
            up.add_metric((), 0)
            return (up,)
        up.add_metric((), 1)
        return (up, *_metrics(figures))


def exporter(viewer: Viewer) -> Callable[[], tuple[bytes, str]]:
    """Return the function that answers /metrics: a text and its media type."""
    registry = CollectorRegistry(auto_describe=False)
    collector = CatalogCollector(lambda work: viewer.cached("metrics", _AGE_S, work))
    registry.register(collector)
    return lambda: (generate_latest(registry), CONTENT_TYPE_LATEST)


def _figures(connection: Connection) -> Row:
    names = ("devices", "jobs", "ended", "phases", "queue", "sharing", "usage", "totals", "models")
    return {name: rows(connection, f"metric_{name}") for name in names}


def _metrics(figures: dict[str, Any]) -> Iterable[Metric]:
    devices = figures["devices"]
    labels = ("worker", "host", "device")
    for name, meaning, column in _DEVICE_GAUGES:
        gauge = GaugeMetricFamily(name, meaning, labels=labels)
        for device in devices:
            if device[column] is not None:
                gauge.add_metric([device[label] for label in labels], device[column])
        yield gauge
    busy = GaugeMetricFamily("tensile_device_busy_ratio", "Share of time in which the GPU computed.", labels=labels)
    alive = GaugeMetricFamily("tensile_worker_alive", "1 if the controller renews its lease.", labels=labels)
    for device in devices:
        values = [device[label] for label in labels]
        alive.add_metric(values, float(device["alive"]))
        if device["busy_percent"] is not None:
            busy.add_metric(values, device["busy_percent"] / 100)
    yield busy
    yield alive
    yield _by_label("tensile_jobs", "Jobs in the catalog.", "state", figures["jobs"], [s.value for s in JobState])
    yield _ended_jobs(figures["ended"])
    yield _by_label("tensile_active_jobs", "Starting and running jobs.", "phase", figures["phases"], [])
    yield GaugeMetricFamily(
        "tensile_queue_oldest_seconds",
        "Age of the oldest job that could start.",
        value=figures["queue"][0]["oldest_s"],
    )
    stp = GaugeMetricFamily(
        "tensile_sharing_throughput_ratio",
        "System throughput of jobs side by side; 1 is taking turns.",
        labels=["kind"],
    )
    for kind in ("foretold", "measured"):
        if figures["sharing"][0][kind] is not None:
            stp.add_metric([kind], figures["sharing"][0][kind])
    yield stp
    for name, meaning, column in _USAGE_COUNTERS:
        yield CounterMetricFamily(name, meaning, value=figures["usage"][0][column])
    yield from _totals(figures["totals"])
    for name in ("models", "versions"):
        yield GaugeMetricFamily(f"tensile_{name}", f"Number of {name}.", value=figures["models"][0][name])


def _totals(totals: list[Row]) -> Iterable[Metric]:
    """Yield the counters of all users together; without samples if the role may not see them."""
    value_of = {(row["name"], row["label"]): row["value"] for row in totals}
    for name, meaning, stored, label in _TOTAL_COUNTERS:
        counter = CounterMetricFamily(name, meaning, labels=[label] if label else [])
        for (own, kind), value in sorted(value_of.items()):
            if own == stored:
                counter.add_metric([kind] if label else [], value)
        yield counter
    latency = HistogramMetricFamily("tensile_prediction_seconds", "Time to answer a request for predictions.")
    if totals:
        buckets: list[tuple[str, float]] = []
        for bound in BOUNDS:
            below = buckets[-1][1] if buckets else 0.0
            buckets.append((bound, below + value_of.get((LATENCY, bound), 0.0)))
        latency.add_metric([], buckets, value_of.get(("prediction_s", ""), 0.0))
    yield latency


def _ended_jobs(counts: list[Row]) -> Metric:
    counter = CounterMetricFamily(
        "tensile_jobs_ended", "Jobs that have ended, deleted ones included.", labels=["state"]
    )
    count_of = {row["state"]: row["jobs"] for row in counts}
    for state in sorted(ENDED_STATES):
        counter.add_metric([state], count_of.get(state, 0))
    return counter


def _by_label(name: str, meaning: str, label: str, counts: list[Row], always: list[str]) -> Metric:
    gauge = GaugeMetricFamily(name, meaning, labels=[label])
    count_of = dict.fromkeys(always, 0) | {row[label]: row["jobs"] for row in counts}
    for value, count in sorted(count_of.items()):
        gauge.add_metric([value], count)
    return gauge
