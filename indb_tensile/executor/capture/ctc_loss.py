"""The loss of connectionist temporal classification (CTC), built from operators that can be captured.

Torch's own `ctc_loss` converts the target lengths to a tensor in a way that tracing cannot follow. All other
computation follows torch's (ctc_loss in aten/src/ATen/native/LossCTC.cpp of torch 2.11 to 2.13), so the results are
equal bit for bit.
"""

from collections.abc import Sequence

import torch

_aten = torch.ops.aten
_ctc_loss = _aten._ctc_loss.default  # noqa: SLF001 - the operator's name
_MEAN, _SUM = 1, 2  # at::Reduction


def ctc_loss(
    scores: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """Compute aten::ctc_loss.IntList.

    `scores` (T, B, C) or (T, C) are logarithms of probabilities; `targets` are (B, S) or flat. Returns one number, or
    one number per row if `reduction` is 0.
    """
    batched = scores.dim() == 3
    rows = scores if batched else scores.unsqueeze(1)
    targets = targets.to(scores.device, torch.int64)
    losses: torch.Tensor = _ctc_loss(rows, targets, input_lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(
            losses == float("inf"), torch.zeros((), dtype=losses.dtype, device=losses.device), losses
        )
    if reduction == _MEAN:
        lengths = [max(1, length) for length in target_lengths]
        return (losses / torch.tensor(lengths, dtype=losses.dtype, device=losses.device)).mean()
    if reduction == _SUM:
        return losses.sum()
    return losses if batched else losses.squeeze(0)


def fake_ctc_loss(scores: torch.Tensor, target_lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the results of aten::_ctc_loss as fake tensors: row losses and alignment probabilities."""
    times, rows = scores.shape[:2]
    return scores.new_empty(rows), scores.new_empty(rows, times, 2 * max(target_lengths) + 1)
