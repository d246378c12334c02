"""What the progress of jobs says of their device."""

from typing import Any

from indb_tensile.cli.progress import device_line

MIB = 1 << 20
DEVICE: dict[str, Any] = {
    "worker_id": 3,
    "used_bytes": MIB,
    "high_water_bytes": 2 * MIB,
    "budget_bytes": 4 * MIB,
    "busy_percent": None,
    "outside_bytes": None,
}


def test_a_device_without_a_driver_shows_its_memory() -> None:
    assert device_line(DEVICE) == "device 3: 1.0 MB in use, most 2.0 MB, budget 4.0 MB"


def test_a_gpu_shows_also_what_its_driver_says() -> None:
    told = DEVICE | {"busy_percent": 80, "outside_bytes": 3 * MIB}
    assert device_line(told) == f"{device_line(DEVICE)}, 3.0 MB beside it, 80 % busy"
