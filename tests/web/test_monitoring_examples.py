"""Check the dashboard, the alert rules and the manual against the names of the metrics, in both directions."""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from indb_tensile.web.metrics_exporter import CatalogCollector

_ROOT = Path(__file__).parents[2]
_EXAMPLES = _ROOT / "examples" / "monitoring"
_FIGURES: dict[str, Any] = {
    "devices": [
        {
            "worker": "1",
            "host": "h",
            "device": "d",
            "alive": True,
            "busy_percent": 40,
            "copied": 5.0,
            **{f"{name}_bytes": 1 for name in ("capacity", "budget", "granted", "used", "host", "outside")},
        }
    ],
    "jobs": [{"state": "running", "jobs": 2}],
    "ended": [{"state": "failed", "jobs": 3}],
    "phases": [{"phase": "training", "jobs": 2}],
    "queue": [{"oldest_s": 1.5}],
    "sharing": [{"foretold": 1.5, "measured": 1.4}],
    "usage": [{"device_s": 1.0, "byte_s": 2.0, "running_s": 3.0}],
    "totals": [
        {"name": name, "label": label, "value": 4.0}
        for name, label in (
            *(("swapped_bytes", "out"), ("swapped_bytes", "in"), ("stall_s", "copies"), ("stall_s", "turns")),
            *(("interruptions", "job"), ("interruptions", "other"), ("predicted_rows", "")),
            *(("prediction_faults", ""), ("prediction_s", ""), ("prediction_latency", "0.005")),
        )
    ],
    "models": [{"models": 1, "versions": 2}],
}


def exported() -> dict[str, set[str]]:
    """Return the names of all metrics with those of their labels."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CatalogCollector(lambda _: _FIGURES))
    names: dict[str, set[str]] = {}
    for line in generate_latest(registry).decode().splitlines():
        if not line.startswith("#"):
            name, labels = re.fullmatch(r"(\w+)(?:\{(.*)\})? .*", line).groups()  # type: ignore[union-attr]
            names.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return names


def test_the_histogram_of_latencies_adds_up_its_buckets_and_monitors_alone_see_it() -> None:
    figures = _FIGURES | {
        "totals": [
            {"name": "prediction_latency", "label": "0.005", "value": 3.0},
            {"name": "prediction_latency", "label": "+Inf", "value": 1.0},
            {"name": "prediction_s", "label": "", "value": 12.5},
        ]
    }
    assert histogram(figures) == {"0.001": 0, "0.005": 3, "0.01": 3, "10": 3, "+Inf": 4, "count": 4, "sum": 12.5}
    assert histogram(_FIGURES | {"totals": []}) == {}


def histogram(figures: dict[str, Any]) -> dict[str, float]:
    """Return five buckets of the histogram of prediction latencies, its count and its sum, as /metrics has them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CatalogCollector(lambda _: figures))
    samples = re.findall(
        r'^tensile_prediction_seconds_(?:bucket\{le="(0.001|0.005|0.01|10|\+Inf)"\}|(count|sum)) (.*)$',
        generate_latest(registry).decode(),
        re.MULTILINE,
    )
    return {bound or part: float(value) for bound, part, value in samples}


def used(expression: str) -> set[str]:
    return set(re.findall(r"tensile_\w+", expression))


def test_dashboard_and_alerts_use_metrics_and_labels_that_exist() -> None:
    names = exported()
    dashboard = json.loads((_EXAMPLES / "grafana.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    alerts = (_EXAMPLES / "alerts.yml").read_text()
    expressions = [target["expr"] for target in targets] + re.findall(r"expr: (.*)", alerts)

    assert len(expressions) > 15
    assert {name for expression in expressions for name in used(expression)} <= set(names)
    for target in targets:
        labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert all(labels <= names[name] for name in used(target["expr"])), target
    for expression in expressions:
        for name, matchers in re.findall(r"(tensile_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)[=!]", matchers)) <= names[name], expression


def test_every_metric_is_in_the_manual_and_on_the_dashboard_or_in_an_alert() -> None:
    manual = (_ROOT / "docs" / "user" / "web.md").read_text()
    shown = (_EXAMPLES / "grafana.json").read_text() + (_EXAMPLES / "alerts.yml").read_text()
    missing_in_manual = {name for name in exported() if f"{name}" not in manual and f"…_{_tail(name)}`" not in manual}

    assert missing_in_manual == set()
    assert set(exported()) - used(shown) <= {
        "tensile_device_capacity_bytes",
        "tensile_device_busy_ratio",
        "tensile_memory_byte_seconds_total",
        "tensile_running_seconds_total",
    }


def test_without_a_database_only_the_metric_up_is_left() -> None:
    import psycopg

    def fail(_: object) -> dict[str, Any]:
        raise psycopg.OperationalError

    registry = CollectorRegistry(auto_describe=False)
    registry.register(CatalogCollector(fail))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]

    assert lines == ["tensile_up 0.0"]


def _tail(name: str) -> str:
    return name.removeprefix("tensile_device_")
