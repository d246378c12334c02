"""Where the rates of an emulated device's links come from."""

import json
import sys
from dataclasses import asdict

import pytest

from indb_tensile.config import Settings
from indb_tensile.controller.link_rates import emulated_link, measure_apart, measured_copies
from indb_tensile.errors import DeviceError, MissingError
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link
from indb_tensile.scheduler.timing.machines import StepTimes, link

PACE = StepTimes(here_ns=500_000_000, there_ns=2_000_000)


class Paces:
    """A catalog of paces, and a measurement that puts one there."""

    def __init__(self, **known: StepTimes) -> None:
        self.known = known
        self.measured = 0

    def measure(self) -> None:
        self.measured += 1
        self.known["a6000"] = PACE

    def link(self, settings: Settings) -> Link:
        return emulated_link(settings, self.known.get, self.measure)


def test_a_device_that_was_never_met_is_measured_and_its_links_slowed_down() -> None:
    paces = Paces()
    assert paces.link(Settings()) == link(0.1)
    assert paces.link(Settings()) == link(0.1)
    assert paces.measured == 1


def test_another_gpu_has_another_link() -> None:
    assert Paces(h200=PACE).link(Settings(emulate="h200")) == link(0.22)


def test_rates_that_are_given_win() -> None:
    paces = Paces()
    both = Settings(link_out_bytes_per_s=7_000, link_in_bytes_per_s=9_000)
    assert paces.link(both) == Link(out_bytes_per_s=7_000, in_bytes_per_s=9_000)
    assert paces.measured == 0
    one = Settings(link_in_bytes_per_s=9_000)
    assert paces.link(one) == Link(out_bytes_per_s=100_000_000, in_bytes_per_s=9_000)


def test_a_gpu_that_nobody_knows_is_refused_even_where_rates_are_given() -> None:
    with pytest.raises(MissingError) as raised:
        Paces().link(Settings(emulate="abacus", link_out_bytes_per_s=7_000, link_in_bytes_per_s=9_000))
    assert raised.value.message == "emulate (TENSILE_EMULATE) is 'abacus': the name of a known GPU is needed"
    assert raised.value.hint == "Known GPUs are a6000, a100, h200, v100, rtx4090."
    assert raised.value.exit_code == 2


def test_what_could_not_be_measured_is_said_with_the_way_out() -> None:
    with pytest.raises(DeviceError, match="the speed of this machine relative to the emulated GPU") as raised:
        emulated_link(Settings(), lambda _: None, lambda: None)
    assert "stored nothing in the catalog" in raised.value.detail
    assert "TENSILE_LINK_OUT_BYTES_PER_S and TENSILE_LINK_IN_BYTES_PER_S" in raised.value.hint
    with pytest.raises(DeviceError) as raised:
        measure_apart((sys.executable, "-c", "import sys; sys.exit(4)"), {})
    assert raised.value.detail == "the measuring process ended with code 4"


def test_a_gpus_copies_are_what_its_own_process_measured() -> None:
    copying = CopyMeasurement(way=CopyDirection.IN, beside=True, size_bytes=7, latency_ns=9, copy_ns=8)
    assert measured_copies("cuda:0", ("echo", json.dumps([asdict(copying)])), {}) == (copying,)


def test_a_link_that_could_not_be_measured_names_the_device() -> None:
    with pytest.raises(DeviceError, match="the link of cuda:1 could not be measured: its process ended with code 1"):
        measured_copies("cuda:1", ("false",), {})
