"""Where on the host an iteration leaves what it returns: its loss, and a model's outputs.

A GPU copies to page-locked memory, which takes the driver long to make: each step has one block, made at its first
iteration, and whoever asked for the iteration gets a copy in ordinary memory. The host writes its own tensors anew.
"""

import torch

from indb_tensile.executor.capture.capture import CapturedStep, Kind

Results = tuple[torch.Tensor, ...]


class Landing:
    """The blocks of one job's steps. `reused`: what is computed later overwrites a block; else each one is new."""

    def __init__(self, *, pinned: bool, reused: bool) -> None:
        self._pinned = pinned
        self._reused = pinned or reused
        self._blocks: dict[tuple[Kind, int], Results] = {}

    def room(self, step: CapturedStep) -> Results:
        """Memory for what one iteration of this step returns."""
        if not self._reused:
            return self._make(step)
        key = (step.kind, step.batch_size)
        if key not in self._blocks:
            self._blocks[key] = self._make(step)
        return self._blocks[key]

    def take(self, results: Results) -> Results:
        """What lies there now, for whoever keeps it beyond the next iteration."""
        return tuple(result.clone() for result in results) if self._reused else results

    def _make(self, step: CapturedStep) -> Results:
        values = [step.values[name] for name in (step.loss, step.outputs) if name]
        return tuple(torch.empty(v.shape, dtype=v.dtype, pin_memory=self._pinned) for v in values)
