"""Trainings that share a device in rounds: the settings of the controller, the jobs, and what tests observe."""

from typing import TYPE_CHECKING

import psycopg

from tests.e2e.trainings import device_columns, train

if TYPE_CHECKING:
    from tests.e2e.conftest import Service  # whose fixtures train

MIB = 1 << 20
BUDGET_BYTES = 26 * MIB
# Jobs that fit only with plans start at once, and begin a round as soon as the planner finds one.
SETTINGS = {
    "TENSILE_CAPACITY_BYTES": str(BUDGET_BYTES),
    "TENSILE_SPARE_TRAINERS": "2",
    "TENSILE_SHARING": "any_price",
    "TENSILE_PHASES": "true",
    "TENSILE_PHASES_S": "0",
    "TENSILE_PHASES_GAIN": "0",
    "TENSILE_DRIFT_THRESHOLD": "100",
}
_CONVOLUTIONAL = '{"type": "cnn", "channels": [12], "depth": 8, "hidden": [64]}'


def train_convolutional(demo: psycopg.Connection, model: str, epochs: int) -> int:
    return train(demo, model, "digits", architecture=_CONVOLUTIONAL, epochs=epochs, batch_size=479)


def epoch_of(service: "Service", job: int) -> int:
    return service.value("select epoch from tensile.job_progress where job_id = %s", job) or 0


def begun_rounds(service: "Service") -> int:
    """Return how many rounds the controller's log tells of."""
    return service.log.read_text(errors="replace").count("share the device in phases")


def highest_bytes(service: "Service") -> int:
    """Return the most device memory in use, or more than the budget if the catalog does not tell."""
    return (device_columns(service, "high_water_bytes") or (BUDGET_BYTES + 1,))[0]
