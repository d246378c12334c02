"""Check which rates the link of an emulated device gets: those in the settings, or measured ones."""

import json
import sys
from dataclasses import asdict

import pytest

from indb_tensile.config import Settings
from indb_tensile.controller.link_rates import emulated_link, measure_apart, measured_copies
from indb_tensile.errors import DeviceError, MissingError
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link
from indb_tensile.scheduler.timing.machines import StepTimes, link

STEP_TIMES = StepTimes(here_ns=500_000_000, there_ns=2_000_000)


class FakeStepTimes:
    """A catalog of step times, and a measurement that stores one in it."""

    def __init__(self, **known: StepTimes) -> None:
        self.known = known
        self.measured = 0

    def measure(self) -> None:
        self.measured += 1
        self.known["a6000"] = STEP_TIMES

    def link(self, settings: Settings) -> Link:
        return emulated_link(settings, self.known.get, self.measure)


def test_new_machine_is_measured_once_and_its_link_is_slowed_down() -> None:
    paces = FakeStepTimes()
    assert paces.link(Settings()) == link(0.1)
    assert paces.link(Settings()) == link(0.1)
    assert paces.measured == 1


def test_link_depends_on_the_emulated_gpu() -> None:
    assert FakeStepTimes(h200=STEP_TIMES).link(Settings(emulate="h200")) == link(0.22)


def test_rates_in_the_settings_take_precedence() -> None:
    paces = FakeStepTimes()
    both_rates = Settings(link_out_bytes_per_s=7_000, link_in_bytes_per_s=9_000)
    assert paces.link(both_rates) == Link(out_bytes_per_s=7_000, in_bytes_per_s=9_000)
    assert paces.measured == 0
    incoming_only = Settings(link_in_bytes_per_s=9_000)
    assert paces.link(incoming_only) == Link(out_bytes_per_s=100_000_000, in_bytes_per_s=9_000)


def test_unknown_gpu_is_refused_even_with_rates_in_the_settings() -> None:
    with pytest.raises(MissingError) as raised:
        FakeStepTimes().link(Settings(emulate="abacus", link_out_bytes_per_s=7_000, link_in_bytes_per_s=9_000))
    assert raised.value.message == "emulate (TENSILE_EMULATE) is 'abacus': the name of a known GPU is needed"
    assert raised.value.hint == "Known GPUs are a6000, a100, h200, v100, rtx4090."
    assert raised.value.exit_code == 2


def test_failed_measurement_is_reported_with_a_hint() -> None:
    with pytest.raises(DeviceError, match="the speed of this machine relative to the emulated GPU") as raised:
        emulated_link(Settings(), lambda _: None, lambda: None)
    assert "stored nothing in the catalog" in raised.value.detail
    assert "TENSILE_LINK_OUT_BYTES_PER_S and TENSILE_LINK_IN_BYTES_PER_S" in raised.value.hint
    with pytest.raises(DeviceError) as raised:
        measure_apart((sys.executable, "-c", "import sys; sys.exit(4)"), {})
    assert raised.value.detail == "the measuring process ended with code 4"


def test_copies_of_a_gpu_are_measured_in_a_process_of_their_own() -> None:
    copying = CopyMeasurement(way=CopyDirection.IN, beside=True, size_bytes=7, latency_ns=9, copy_ns=8)
    assert measured_copies("cuda:0", ("echo", json.dumps([asdict(copying)])), {}) == (copying,)


def test_failed_measurement_of_a_link_names_the_device() -> None:
    with pytest.raises(DeviceError, match="the link of cuda:1 could not be measured: its process ended with code 1"):
        measured_copies("cuda:1", ("false",), {})
