"""How the forward and backward pass of one step are computed: in how many parts, and in which precision.

A batch in parts (micro-batches) needs the activations of one part at a time; gradients add up in place, as eager's
gradient accumulation does. Each part's loss counts by its share of the rows, so a mean over rows stays one.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from indb_tensile.errors import RequestError

# What autocast casts to; the others compute in float32, on a GPU in one of its forms (precision.py).
PRECISIONS: dict[str, torch.dtype | None] = {
    "torch": None,
    "float32": None,
    "tf32": None,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """`micro_batch_size` bounds the rows of a part, None takes the batch whole; `precision` is one of `PRECISIONS`.

    Parameters, gradients and the optimizer's state are float32 in any of them. Raises RequestError for what is
    out of range.
    """

    micro_batch_size: int | None = None
    precision: str = "torch"

    def __post_init__(self) -> None:
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise RequestError(f"a micro-batch of {self.micro_batch_size} rows is none", hint="Give at least 1.")
        if self.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise RequestError(f"precision {self.precision!r} is unknown", hint=f"Use one of {known}.")

    @property
    def autocast(self) -> torch.dtype | None:
        """What operators that tolerate it are cast to."""
        return PRECISIONS[self.precision]

    def parts(self, rows: int) -> tuple[range, ...]:
        """The rows of each part, in order: nearly equal parts, never a single row beside others.

        So parts have one row more than the bound where it is 2 and the rows are odd: batch normalisation cannot
        learn from one.
        """
        if self.micro_batch_size is None or rows <= self.micro_batch_size:
            return (range(rows),)
        count = -(-rows // self.micro_batch_size)
        if self.micro_batch_size > 1:
            count = min(count, rows // 2)
        small, larger = divmod(rows, count)
        ends = [0, *accumulate(small + (k < larger) for k in range(count))]
        return tuple(range(start, end) for start, end in pairwise(ends))


WHOLE = Passes()  # the batch as it is, without autocast
