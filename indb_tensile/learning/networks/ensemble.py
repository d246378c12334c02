"""An ensemble of one network: members with different first weights, trained as one and predicting their mean.

Lakshminarayanan, Pritzel and Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles"
(NeurIPS 2017): members that differ in their seeds alone already predict better together than each by itself.

The members are one network with one step graph. So an ensemble is planned, checkpointed, parked and resumed as any
other network, and has the same bits under every plan. They learn from the same batches, and each has the gradients
that it would have alone. Early stopping looks at what is published: the mean prediction of all.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from indb_tensile.learning.networks.member_mean import OutputKind, member_mean
from indb_tensile.learning.networks.tabm import MemberLoss

FIRST_MEMBER = "members.0."  # the names of its parameters begin with this


class Ensemble(nn.Module):
    """Returns the outputs of all members while training, and otherwise their mean prediction (member_mean.py)."""

    def __init__(self, build_member: Callable[[], nn.Module], members: int, output_kind: OutputKind) -> None:
        super().__init__()
        self.members = nn.ModuleList(build_member() for _ in range(members))
        self.output_kind = output_kind

    def forward(self, x: Tensor) -> Tensor:
        """Map rows to (batch, members, outputs) in training mode, else to (batch, outputs)."""
        outputs = torch.stack([member(x) for member in self.members], dim=1)
        return outputs if self.training else member_mean(outputs, self.output_kind)


class EnsembleLoss(nn.Module):
    """The mean loss of the members, with the gradients of its sum: each member learns as it would alone.

    With the gradients of the mean, five members would learn at a fifth of the learning rate where the optimizer does
    not scale gradients, as sgd. Outputs of evaluation mode get the loss of one network.
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.mean = MemberLoss(loss)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss for outputs (batch, members, outputs) or (batch, outputs)."""
        mean = cast(Tensor, self.mean(outputs, targets))
        if outputs.dim() == 2:
            return mean
        return mean + (outputs.shape[1] - 1) * (mean - mean.detach())
