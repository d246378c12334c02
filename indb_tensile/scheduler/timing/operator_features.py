"""What an operator's latency depends on, as numbers: its shapes, layouts, types, parameters, and the device's use.

TENSILE section IV-A gives each of 40 kinds of operator a network of its own, whose inputs are every dimension of
every input tensor, the operator's parameters and the GPU's utilisation. Here one model serves all kinds, so operators
of any number of inputs become rows of one width: besides the extents of the first tensors and the parameters, a row
holds what those mean (arithmetic, bytes, contiguity, the extents of a matrix product or a convolution).
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indb_tensile.errors import DataError
from indb_tensile.scheduler.timing.latency import DeviceSpeed, roofline_ns

_TENSORS = 3  # inputs whose extents are told one by one, beside the first output's
_DIMS = 4  # the innermost ones of each
_PARAMETERS = 6

_MOST = 2**63  # bytes or operations: PostgreSQL's and torch's own limit
_MOST_BITS = 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One tensor that an operator is given or returns; strides count elements."""

    dtype: str
    itemsize_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        negative = min((self.itemsize_bytes, *self.shape, *self.stride)) < 0
        if len(self.shape) != len(self.stride) or negative or self.itemsize_bytes * self.elements > _MOST:
            raise DataError(
                f"there is no tensor of shape {self.shape}, strides {self.stride}, {self.itemsize_bytes} bytes each"
            )

    @property
    def elements(self) -> int:
        """How many numbers it shows."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of memory behind it: what a broadcast dimension repeats is read from cache, and counts once."""
        return self.itemsize_bytes * math.prod(n for n, s in zip(self.shape, self.stride, strict=True) if s or not n)

    @property
    def run(self) -> int:
        """How many elements from the first one on are neighbours in memory."""
        run = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if extent != 1 and stride != run:
                break
            run *= extent
        return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """An operator without its tensors: enough to foretell its latency on a device where it never ran.

    `parameters` are the arguments that are no tensors, in order, each as its numbers. What is written in place is
    among the inputs, and among the outputs only where it is returned. `features` are worked out once, since graphs
    are predicted again and again.
    """

    name: str
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    parameters: tuple[tuple[float, ...], ...]
    flops: int
    features: tuple[float, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.flops <= _MOST:
            raise DataError(f"operator {self.name} has {self.flops} floating-point operations")
        object.__setattr__(self, "features", tuple(_features(self)))

    @property
    def moved_bytes(self) -> int:
        """Bytes that it reads and writes."""
        return sum(layout.size_bytes for layout in (*self.inputs, *self.outputs))


def matrix(descriptions: Sequence[Description]) -> NDArray[np.float64]:
    """One row of features for each operator."""
    numbers = (number for description in descriptions for number in description.features)
    count = len(descriptions) * WIDTH
    return np.fromiter(numbers, dtype=np.float64, count=count).reshape(-1, WIDTH)


def rooflines_ns(descriptions: Iterable[Description], speed: DeviceSpeed) -> NDArray[np.float64]:
    """The analytic estimate of each operator, which a prediction corrects."""
    return np.array([roofline_ns(d.flops, d.moved_bytes, speed) for d in descriptions], dtype=np.float64)


# --- features --------------------------------------------------------------------------------------------------


def _features(description: Description) -> Iterator[float]:
    yield from _totals(description)
    yield from _layouts(description)
    yield from _product(description)
    yield from _convolution(description)
    yield from _extents(description)
    yield from _parameters(description)


def _bits(number: float) -> float:
    """The logarithm of a size: latencies grow with products, so they are sums of these."""
    return min(math.log2(1 + abs(number)), _MOST_BITS) if math.isfinite(number) else _MOST_BITS


def _totals(description: Description) -> Iterator[float]:
    given_bytes = sum(layout.size_bytes for layout in description.inputs)
    made_bytes = sum(layout.size_bytes for layout in description.outputs)
    arithmetic, traffic = _bits(description.flops), _bits(given_bytes + made_bytes)
    yield from (arithmetic, _bits(given_bytes), _bits(made_bytes), traffic, arithmetic - traffic)
    yield from (_bits(len(description.inputs)), _bits(len(description.outputs)))


def _layouts(description: Description) -> Iterator[float]:
    """Sizes and runs of the largest input and the first output: strided and broadcast tensors are read slower."""
    sizes = [layout.elements for layout in description.inputs]
    largest = max(description.inputs, key=lambda layout: layout.elements, default=_NOTHING)
    made = description.outputs[0] if description.outputs else _NOTHING
    yield from (_bits(largest.elements), _bits(min(sizes, default=0)), _bits(made.elements))
    yield from (_bits(largest.run), _bits(largest.elements) - _bits(largest.run), _bits(made.run))
    yield _bits(made.elements) - _bits(largest.elements)
    yield max((float(layout.itemsize_bytes) for layout in description.inputs), default=0.0)
    yield float(made.itemsize_bytes)
    yield min(sum(_bits(layout.elements) - _bits(layout.run) for layout in description.inputs), 4 * _MOST_BITS)


def _product(description: Description) -> Iterator[float]:
    """Rows, inner extent, columns and count of a matrix product, and which side is transposed."""
    sides = [layout for layout in description.inputs if len(layout.shape) >= 2][-2:]
    if len(sides) < 2:
        yield from [0.0] * _PRODUCT
        return
    left, right = sides
    yield from (_bits(left.shape[-2]), _bits(left.shape[-1]), _bits(right.shape[-1]))
    yield from (_bits(math.prod(left.shape[:-2])), float(left.stride[-1] != 1), float(right.stride[-1] != 1))


def _convolution(description: Description) -> Iterator[float]:
    """Window, groups, channels of one group each way, rows, and pixels in and out."""
    if "convolution" not in description.name or len(description.inputs) < 2 or not description.outputs:
        yield from [0.0] * _CONVOLUTION
        return
    backward = "backward" in description.name and len(description.inputs) > 2
    image, weight = description.inputs[1:3] if backward else description.inputs[:2]
    result = description.inputs[0] if backward else description.outputs[0]
    if min(len(image.shape), len(weight.shape), len(result.shape)) < 3 or not weight.shape[1]:
        yield from [0.0] * _CONVOLUTION
        return
    groups = image.shape[1] / weight.shape[1]
    yield from (_bits(math.prod(weight.shape[2:])), _bits(groups), _bits(weight.shape[1]))
    yield from (_bits(weight.shape[0] / max(groups, 1)), _bits(image.shape[0]), _bits(image.shape[-1]))
    yield from (_bits(math.prod(image.shape[2:])), _bits(math.prod(result.shape[2:])))


def _extents(description: Description) -> Iterator[float]:
    given = [*description.inputs[:_TENSORS], *[_NOTHING] * (_TENSORS - len(description.inputs))]
    for layout in (*given, description.outputs[0] if description.outputs else _NOTHING):
        innermost = layout.shape[-_DIMS:]
        yield from [0.0] * (_DIMS - len(innermost))
        yield from map(_bits, innermost)


def _parameters(description: Description) -> Iterator[float]:
    told = [_bits(math.prod(numbers)) for numbers in description.parameters[:_PARAMETERS]]
    yield from told
    yield from [0.0] * (_PARAMETERS - len(told))


_NOTHING = Layout(dtype="", itemsize_bytes=0, shape=(0,), stride=(1,))
_PRODUCT = 6
_CONVOLUTION = 8
WIDTH = len(Description(name="", inputs=(), outputs=(), parameters=(), flops=0).features)


# --- as text ---------------------------------------------------------------------------------------------------


def write_description(description: Description) -> str:
    """As JSON, which the catalog keeps beside the operator's latency."""
    return json.dumps(
        {
            "name": description.name,
            "inputs": [_written(layout) for layout in description.inputs],
            "outputs": [_written(layout) for layout in description.outputs],
            # As text where JSON has no such number.
            "parameters": [[n if math.isfinite(n) else str(n) for n in given] for given in description.parameters],
            "flops": description.flops,
        },
        separators=(",", ":"),
    )


def read_description(text: str) -> Description:
    """The description of this JSON. Raises DataError where it is none."""
    try:
        found = json.loads(text)
        return Description(
            name=str(found["name"]),
            inputs=_listed(found["inputs"], _read_layout),
            outputs=_listed(found["outputs"], _read_layout),
            parameters=_listed(found["parameters"], lambda numbers: _listed(numbers, float)),
            flops=int(found["flops"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise DataError(f"an operator's description cannot be read: {type(error).__name__}: {error}") from error


def _written(layout: Layout) -> list[Any]:
    return [layout.dtype, layout.itemsize_bytes, layout.shape, layout.stride]


def _read_layout(item: Any) -> Layout:
    dtype, itemsize_bytes, shape, stride = item
    return Layout(
        dtype=str(dtype), itemsize_bytes=int(itemsize_bytes), shape=_listed(shape, int), stride=_listed(stride, int)
    )


def _listed(items: Any, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    if not isinstance(items, list):
        raise TypeError(f"{items!r} is no list")
    return tuple(map(read, items))
