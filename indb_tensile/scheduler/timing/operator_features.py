"""Turn an operator into a row of numbers from which its latency is predicted: shapes, layouts, types and parameters.

TENSILE section IV-A gives each of 40 kinds of operator a network of its own. The inputs of such a network are every
dimension of every input tensor, the operator's parameters and the GPU's utilisation. We use one model for all kinds,
so operators with any number of inputs become rows of one width. Besides the extents of the first tensors and the
parameters, a row holds derived quantities: arithmetic, bytes, contiguity, and the extents of a matrix product or a
convolution.
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

_TENSORS = 3  # number of inputs whose extents are listed one by one, besides the first output's
_DIMS = 4  # number of innermost dimensions that are listed for each tensor
_PARAMETERS = 6

_MOST = 2**63  # bytes or operations: the limit of PostgreSQL's and torch's 64-bit integers
_MOST_BITS = 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of one tensor that an operator reads or returns. Strides count elements."""

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
        """The number of elements that the shape has."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of memory behind the tensor. A broadcast dimension counts once, because its repetitions are read from
        cache.
        """
        return self.itemsize_bytes * math.prod(n for n, s in zip(self.shape, self.stride, strict=True) if s or not n)

    @property
    def run(self) -> int:
        """The number of elements, from the first one on, that are contiguous in memory."""
        run = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if extent != 1 and stride != run:
                break
            run *= extent
        return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """An operator without its tensors' contents: enough to predict its latency on a device on which it never ran.

    `parameters` are the arguments that are not tensors, in order, each as a tuple of numbers. A tensor written in
    place is among the inputs, and among the outputs only if the operator returns it. `features` are computed once,
    because the same graphs are predicted repeatedly.
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
        """The bytes that the operator reads and writes."""
        return sum(layout.size_bytes for layout in (*self.inputs, *self.outputs))


def matrix(descriptions: Sequence[Description]) -> NDArray[np.float64]:
    """Return one row of features for each operator."""
    numbers = (number for description in descriptions for number in description.features)
    count = len(descriptions) * WIDTH
    return np.fromiter(numbers, dtype=np.float64, count=count).reshape(-1, WIDTH)


def rooflines_ns(descriptions: Iterable[Description], speed: DeviceSpeed) -> NDArray[np.float64]:
    """Return the roofline estimate of each operator in nanoseconds. A prediction is a correction of this estimate."""
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
    """Return the logarithm of a size, because latencies grow with products of sizes and logarithms turn them into
    sums.
    """
    return min(math.log2(1 + abs(number)), _MOST_BITS) if math.isfinite(number) else _MOST_BITS


def _totals(description: Description) -> Iterator[float]:
    input_bytes = sum(layout.size_bytes for layout in description.inputs)
    output_bytes = sum(layout.size_bytes for layout in description.outputs)
    arithmetic, traffic = _bits(description.flops), _bits(input_bytes + output_bytes)
    yield from (arithmetic, _bits(input_bytes), _bits(output_bytes), traffic, arithmetic - traffic)
    yield from (_bits(len(description.inputs)), _bits(len(description.outputs)))


def _layouts(description: Description) -> Iterator[float]:
    """Yield sizes and contiguous runs of the largest input and the first output. Strided and broadcast tensors are
    slower to read.
    """
    sizes = [layout.elements for layout in description.inputs]
    largest = max(description.inputs, key=lambda layout: layout.elements, default=_NOTHING)
    output = description.outputs[0] if description.outputs else _NOTHING
    yield from (_bits(largest.elements), _bits(min(sizes, default=0)), _bits(output.elements))
    yield from (_bits(largest.run), _bits(largest.elements) - _bits(largest.run), _bits(output.run))
    yield _bits(output.elements) - _bits(largest.elements)
    yield max((float(layout.itemsize_bytes) for layout in description.inputs), default=0.0)
    yield float(output.itemsize_bytes)
    yield min(sum(_bits(layout.elements) - _bits(layout.run) for layout in description.inputs), 4 * _MOST_BITS)


def _product(description: Description) -> Iterator[float]:
    """Yield rows, inner extent, columns and batch count of a matrix product, and whether each side is transposed."""
    sides = [layout for layout in description.inputs if len(layout.shape) >= 2][-2:]
    if len(sides) < 2:
        yield from [0.0] * _PRODUCT
        return
    left, right = sides
    yield from (_bits(left.shape[-2]), _bits(left.shape[-1]), _bits(right.shape[-1]))
    yield from (_bits(math.prod(left.shape[:-2])), float(left.stride[-1] != 1), float(right.stride[-1] != 1))


def _convolution(description: Description) -> Iterator[float]:
    """Yield window size, groups, channels per group on both sides, batch rows, width, and pixels of the image and the
    result.
    """
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
    inputs = [*description.inputs[:_TENSORS], *[_NOTHING] * (_TENSORS - len(description.inputs))]
    for layout in (*inputs, description.outputs[0] if description.outputs else _NOTHING):
        innermost = layout.shape[-_DIMS:]
        yield from [0.0] * (_DIMS - len(innermost))
        yield from map(_bits, innermost)


def _parameters(description: Description) -> Iterator[float]:
    listed = [_bits(math.prod(numbers)) for numbers in description.parameters[:_PARAMETERS]]
    yield from listed
    yield from [0.0] * (_PARAMETERS - len(listed))


_NOTHING = Layout(dtype="", itemsize_bytes=0, shape=(0,), stride=(1,))
_PRODUCT = 6
_CONVOLUTION = 8
WIDTH = len(Description(name="", inputs=(), outputs=(), parameters=(), flops=0).features)


# --- as text ---------------------------------------------------------------------------------------------------


def write_description(description: Description) -> str:
    """Return the description as JSON. The catalog stores it beside the operator's latency."""
    return json.dumps(
        {
            "name": description.name,
            "inputs": [_written(layout) for layout in description.inputs],
            "outputs": [_written(layout) for layout in description.outputs],
            # JSON has no infinities and no NaN, so these are written as text.
            "parameters": [
                [n if math.isfinite(n) else str(n) for n in numbers] for numbers in description.parameters
            ],
            "flops": description.flops,
        },
        separators=(",", ":"),
    )


def read_description(text: str) -> Description:
    """Return the description in this JSON text. Raises DataError if the text is not a description."""
    try:
        fields = json.loads(text)
        return Description(
            name=str(fields["name"]),
            inputs=_listed(fields["inputs"], _read_layout),
            outputs=_listed(fields["outputs"], _read_layout),
            parameters=_listed(fields["parameters"], lambda numbers: _listed(numbers, float)),
            flops=int(fields["flops"]),
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
        raise TypeError(f"{items!r} is not a list")
    return tuple(map(read, items))
