"""Jobs share memory in phases where regions can pass from job to job. Otherwise the log says why they do not."""

import logging

import pytest

from indb_tensile.config import Settings
from indb_tensile.controller.round_conditions import boundary_ns, runs_rounds


@pytest.mark.parametrize(
    ("device", "shared", "strict", "obstacle"),
    [
        ("emulated", False, False, ""),
        ("cpu", False, False, ""),
        ("cuda:0", True, False, ""),
        ("cuda:0", False, False, "each trainer allocates its own regions of the GPU"),
        ("emulated", False, True, "strict is on"),
    ],
)
def test_setting_applies_or_the_log_says_why_it_does_not(
    caplog: pytest.LogCaptureFixture, device: str, shared: bool, strict: bool, obstacle: str
) -> None:
    with caplog.at_level(logging.WARNING):
        assert runs_rounds(Settings(device=device, strict=strict, phases=True), shared=shared) == (not obstacle)
    assert obstacle in caplog.text
    assert bool(caplog.text) == bool(obstacle)


def test_nothing_is_said_where_phases_is_off_and_only_a_gpu_stands_still_at_boundaries() -> None:
    assert not runs_rounds(Settings(device="cuda:0"), shared=True)
    assert (boundary_ns(Settings(device="cuda:0")) > 0, boundary_ns(Settings(device="emulated"))) == (True, 0)
