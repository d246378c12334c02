"""Check that updates of running statistics from known statistics have the bits of batch normalisation's kernel."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.executor.capture.running_statistics import BATCH_NORM, MEAN, VARIANCE
from indb_tensile.executor.capture.statistics_rounding import Rounding, SeenValues, roundings, updated

HOST = torch.device("cpu")
SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**40), max_value=2.0**40)
LAYOUTS = [(2, False), (3, False), (4, False), (4, True), (5, False), (5, True)]


def exact(number: float) -> Fraction:
    return Fraction(float(np.float32(number)))


def nearest(number: Fraction) -> float:
    """Return the number in single precision that is nearest, and the one with an even last bit of two such."""
    close = np.float32(float(number))
    around = [close, np.nextafter(close, np.float32(np.inf)), np.nextafter(close, np.float32(-np.inf))]
    return float(
        min(around, key=lambda single: (abs(Fraction(float(single)) - number), int(single.view(np.int32)) & 1))
    )


@given(running=SINGLE, statistic=SINGLE, momentum=st.sampled_from([0.1, 0.01, 0.3, 0.5, 0.9997, 1.0]))
def test_each_rounding_leaves_out_the_others(running: float, statistic: float, momentum: float) -> None:
    weight = exact(momentum)
    rest = exact(float(np.float32(1) - np.float32(momentum)))
    old, new = torch.tensor([running]), torch.tensor([statistic])
    products = weight * exact(statistic), rest * exact(running)
    rounded = [Fraction(nearest(product)) for product in products]
    expected = {
        Rounding.BOTH: nearest(sum(rounded, Fraction(0))),
        Rounding.OLD: nearest(products[0] + rounded[1]),
        Rounding.NEW: nearest(rounded[0] + products[1]),
    }
    assert {rounding: float(updated(old, new, momentum, rounding)) for rounding in Rounding} == expected


def test_sum_that_double_precision_rounds_to_the_middle_of_two_single_ones_is_rounded_once() -> None:
    """The product with the statistic ends in half of the last place. The running one is too small for double."""
    momentum = statistic = 1 + 2.0**-12  # no momentum of a network, but one that makes the case
    for running in (2.0**-46, -(2.0**-46)):
        old, new = torch.tensor([running]), torch.tensor([statistic])
        rest = exact(float(np.float32(1) - np.float32(momentum)))
        summand = Fraction(nearest(rest * exact(running)))
        expected = nearest(exact(momentum) * exact(statistic) + summand)
        assert float(updated(old, new, momentum, Rounding.OLD)) == expected
        in_double = np.float32(float(exact(momentum) * exact(statistic)) + float(summand))
        assert (float(in_double) == expected) == (summand < 0)


def test_numbers_that_are_not_finite_stay_as_the_kernel_leaves_them() -> None:
    old = torch.tensor([1.0, torch.inf, torch.nan, 0.0])
    new = torch.tensor([torch.inf, 1.0, 1.0, 0.0])
    for rounding in Rounding:
        made = updated(old, new, 0.1, rounding)
        assert made[:2].tolist() == [torch.inf, torch.inf]
        assert made.isnan().tolist() == [False, False, True, False]


@pytest.mark.parametrize(("dimensions", "channels_last"), LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_update_from_a_parts_statistics_has_the_bits_of_the_kernel(
    dtype: torch.dtype, dimensions: int, channels_last: bool
) -> None:
    of_statistics = torch.float64 if dtype == torch.float64 else torch.float32
    seen = SeenValues(dtype=dtype, dimensions=dimensions, channels_last=channels_last)
    generator = torch.Generator().manual_seed(5)
    for momentum in (0.1, 0.37):
        known = roundings(HOST, seen, of_statistics, momentum)
        for channels in (1, 8, 301):
            values = torch.randn((4, channels, *(3,) * (dimensions - 2)), generator=generator).to(dtype) + 2
            if channels_last:
                order = torch.channels_last if dimensions == 4 else torch.channels_last_3d
                values = values.contiguous(memory_format=order)
            old = [torch.rand(channels, generator=generator, dtype=of_statistics) for _ in range(2)]
            new, alone = (
                BATCH_NORM(values, None, None, *running, True, weight, 1e-5)
                for running, weight in ((old, momentum), ([torch.zeros_like(running) for running in old], 1.0))
            )
            for kind, running in zip((MEAN, VARIANCE), old, strict=True):
                rounding = known[kind]
                assert rounding is not None
                assert torch.equal(updated(running, alone[kind], momentum, rounding), new[kind])
            assert all(torch.equal(*both) for both in zip(new[:3], alone[:3], strict=True))


def test_memory_order_of_the_values_is_known_unless_it_is_unusual() -> None:
    images = torch.zeros(2, 3, 4, 5)
    plain = SeenValues(dtype=torch.float32, dimensions=4, channels_last=False)
    assert SeenValues.of(images) == plain
    assert SeenValues.of(images.contiguous(memory_format=torch.channels_last)) == SeenValues(
        dtype=torch.float32, dimensions=4, channels_last=True
    )
    assert SeenValues.of(images.transpose(2, 3)) is None
    assert SeenValues.of(torch.zeros(4, 3).t()) is None
