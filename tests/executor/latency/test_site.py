"""Operators are measured in a GPU's memory that may be too small. Doubles replace the allocator and the timer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch

from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.executor.latency.calibrate import add_scripts, calibrate, unknown_signatures
from indb_tensile.executor.latency.calibration_site import CalibrationSite, calibrate_on
from tests.executor.conftest import captured

GRANT_BYTES = 10 << 20


class FakeServing:
    """Serves no memory. The n-th operator is refused memory, and either fails or succeeds without the memory."""

    alone = True

    def __init__(self, refuse_at: int = 0, needed_bytes: int = 0, grantable_bytes: int = 0, *, fails: bool) -> None:
        self.runs = 0
        self._refuse_at, self._fails = refuse_at, fails
        self._answer = needed_bytes, grantable_bytes
        self._refused = 0, 0

    def record(self) -> None: ...

    def recorded(self) -> tuple[()]:
        return ()

    def trim(self) -> None: ...

    @contextmanager
    def on(self) -> Iterator[None]:
        self.runs += 1
        if self.runs == self._refuse_at:
            self._refused = self._answer
            if self._fails:
                raise torch.OutOfMemoryError("the job's regions have no 123 bytes in one piece for torch")
        yield

    def refusal(self) -> tuple[int, int]:
        answer, self._refused = self._refused, (0, 0)
        return answer


class FakeTimer:
    """Returns the same time for every call."""

    def time_ns(self, run: Callable[[], object]) -> int:
        run()
        return 1234


@contextmanager
def measured_on(serving: FakeServing) -> Iterator[None]:
    calibrate_on(
        CalibrationSite(
            device=torch.device("cpu"),
            serving=cast(ArenaServing, serving),
            timer=FakeTimer(),
            refusal=serving.refusal,
        )
    )
    try:
        yield
    finally:
        calibrate_on(None)


def _calibrated(serving: FakeServing) -> Any:
    steps = captured("mlp")
    with measured_on(serving):
        return calibrate(steps, unknown_signatures(steps, {}), {}, GRANT_BYTES)


def test_a_call_is_timed_by_the_sites_own_timer() -> None:
    calibrated = _calibrated(FakeServing(fails=False))
    assert {latency_ns for latency_ns, _ in calibrated.measured.values()} == {1234}
    assert calibrated.overflow_bytes == 0


@pytest.mark.parametrize("fails", [False, True])
def test_an_operator_that_is_refused_memory_asks_for_a_larger_grant_even_if_the_operator_succeeds(
    *, fails: bool
) -> None:
    calibrated = _calibrated(FakeServing(3, GRANT_BYTES + 5_000_000, GRANT_BYTES + 5_000_000, fails=fails))
    assert (calibrated.overflow_bytes, calibrated.measured) == (5_000_000, {})


def test_a_fragmented_grant_asks_for_one_more_region() -> None:
    assert _calibrated(FakeServing(1, GRANT_BYTES - 5, GRANT_BYTES - 5, fails=True)).overflow_bytes == 1 << 20


def test_a_request_beyond_the_whole_device_asks_for_a_larger_grant_only_if_the_operator_fails() -> None:
    assert _calibrated(FakeServing(3, 1 << 50, 0, fails=False)).overflow_bytes == 0
    assert _calibrated(FakeServing(3, 1 << 50, 0, fails=True)).overflow_bytes > 1 << 49


def test_a_failure_for_another_reason_is_raised() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        _calibrated(FakeServing(3, 0, 0, fails=True))


def test_an_operator_that_cannot_be_recorded_beside_others_has_no_script() -> None:
    steps = captured("mlp")
    whole, short = FakeServing(fails=False), FakeServing(1, 5, 5, fails=True)
    with measured_on(whole):
        everything = {key for step in add_scripts(steps) for key in step.scripts}
    with measured_on(short):
        assert len({key for step in add_scripts(steps) for key in step.scripts}) == len(everything) - 1


def test_scratch_on_a_gpu_has_the_alignment_of_torchs_own_allocator() -> None:
    steps = captured("mlp")
    with measured_on(FakeServing(fails=False)):
        scripts = [script for step in add_scripts(steps) for script in step.scripts.values()]
    assert {script.alignment_bytes for script in scripts} == {512}
