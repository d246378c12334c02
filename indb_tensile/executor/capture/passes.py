"""Settings for computing the forward and backward pass of one step: in how many parts, and in which precision.

A batch in parts (micro-batches) needs the activations of one part at a time. Gradients add up in place, like eager's
gradient accumulation. The loss of each part is weighted by the part's share of the rows, so a mean over rows stays a
mean.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from indb_tensile.errors import RequestError

# The type that autocast casts to. None computes in float32, on a GPU in one of its forms (precision.py).
PRECISIONS: dict[str, torch.dtype | None] = {
    "torch": None,
    "float32": None,
    "tf32": None,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The computation of a pass: in parts of at most `micro_batch_size` rows (None: whole), in `precision`.

    `precision` is a key of `PRECISIONS`. Parameters, gradients and the optimizer's state are always float32. Raises
    RequestError for values out of range.
    """

    micro_batch_size: int | None = None
    precision: str = "torch"

    def __post_init__(self) -> None:
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise RequestError(f"micro_batch_size {self.micro_batch_size} is less than 1", hint="Give at least 1.")
        if self.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise RequestError(f"precision {self.precision!r} is unknown", hint=f"Use one of {known}.")

    @property
    def autocast(self) -> torch.dtype | None:
        """The type that autocast casts operators to, or None without autocast."""
        return PRECISIONS[self.precision]

    def parts(self, rows: int) -> tuple[range, ...]:
        """Return the rows of each part, in order: nearly equal parts, and never a part of one row in a divided batch.

        Batch normalisation cannot learn from a single row. So if the limit is 2 and the number of rows is odd, a part
        has 3 rows.
        """
        if self.micro_batch_size is None or rows <= self.micro_batch_size:
            return (range(rows),)
        count = -(-rows // self.micro_batch_size)
        if self.micro_batch_size > 1:
            count = min(count, rows // 2)
        rows_per_part, larger = divmod(rows, count)
        ends = [0, *accumulate(rows_per_part + (k < larger) for k in range(count))]
        return tuple(range(start, end) for start, end in pairwise(ends))


WHOLE = Passes()  # the batch as it is, without autocast
