"""Host memory for the results of an iteration: the loss, and a model's outputs.

A GPU copies results to page-locked memory, which the driver allocates slowly. Each step therefore has one block, made
at its first iteration, and the caller of an iteration gets a copy in ordinary memory. If the device's memory is the
host's, each iteration gets new tensors.
"""

import torch

from indb_tensile.executor.capture.step_capture import CapturedStep, StepKind

Results = tuple[torch.Tensor, ...]


class HostResults:
    """The result blocks of one job's steps.

    With `reused` each step has one block, which later iterations overwrite. Otherwise each iteration has a new block.
    """

    def __init__(self, *, pinned: bool, reused: bool) -> None:
        self._pinned = pinned
        self._reused = pinned or reused
        self._blocks: dict[tuple[StepKind, int], Results] = {}

    def room(self, step: CapturedStep) -> Results:
        """Return memory for the results of one iteration of this step."""
        if not self._reused:
            return self._make(step)
        key = (step.kind, step.batch_size)
        if key not in self._blocks:
            self._blocks[key] = self._make(step)
        return self._blocks[key]

    def take(self, results: Results) -> Results:
        """Return the results of the last iteration, in memory that the next iteration does not overwrite."""
        return tuple(result.clone() for result in results) if self._reused else results

    def _make(self, step: CapturedStep) -> Results:
        values = [step.values[name] for name in (step.loss, step.outputs) if name]
        return tuple(torch.empty(v.shape, dtype=v.dtype, pin_memory=self._pinned) for v in values)
