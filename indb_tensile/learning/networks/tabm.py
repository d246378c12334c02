"""TabM: an ensemble of fully connected networks in one, whose members share most of their weights.

Gorishniy, Kotelnikov and Babenko, "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling" (ICLR
2025). The authors' package `tabm` is not used, for the reason that `row_embeddings.py` gives.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from indb_tensile.learning.networks.member_mean import OutputKind, member_mean
from indb_tensile.learning.networks.row_embeddings import RowEmbedding


class TabM(nn.Module):
    """Returns the outputs of all members while training, and otherwise their mean prediction (member_mean.py)."""

    def __init__(
        self,
        embedding: RowEmbedding,
        members: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        output_kind: OutputKind,
        activation: Callable[[], nn.Module],
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.members = members
        self.output_kind = output_kind
        widths = (embedding.outputs, *hidden)
        layers: list[nn.Module] = []
        for place, (inputs, units) in enumerate(zip(widths[:-1], hidden, strict=True)):
            layers += [SharedLinear(inputs, units, members, random=place == 0), activation()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.hidden = nn.Sequential(*layers)
        self.heads = SeparateLinear(widths[-1], outputs, members)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (batch, width) to (batch, members, outputs) in training mode, else to (batch, outputs)."""
        embedded = self.embedding(x)
        own = embedded.unsqueeze(1).expand(-1, self.members, -1)
        outputs = cast(Tensor, self.heads(self.hidden(own)))
        return outputs if self.training else member_mean(outputs, self.output_kind)


class SharedLinear(nn.Module):
    """A linear layer that all members share; each scales its inputs and outputs and has its own constants.

    With `random` the scales of the inputs are drawn as 1 or -1, which makes the members differ from the start.
    """

    def __init__(self, inputs: int, outputs: int, members: int, *, random: bool) -> None:
        super().__init__()
        self.random = random
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.input_scale = nn.Parameter(torch.empty(members, inputs))
        self.output_scale = nn.Parameter(torch.empty(members, outputs))
        self.bias = nn.Parameter(torch.empty(members, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights from the range that torch's linear layers use."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)
        nn.init.ones_(self.output_scale)
        nn.init.ones_(self.input_scale)
        if self.random:
            with torch.no_grad():
                self.input_scale.bernoulli_(0.5).mul_(2).sub_(1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, members, inputs) to (batch, members, outputs)."""
        return nn.functional.linear(x * self.input_scale, self.weight) * self.output_scale + self.bias


class SeparateLinear(nn.Module):
    """A linear layer of its own for each member."""

    def __init__(self, inputs: int, outputs: int, members: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights from the range that torch's linear layers use."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, members, inputs) to (batch, members, outputs)."""
        return (torch.matmul(x.transpose(0, 1), self.weight) + self.bias).transpose(0, 1)


class MemberLoss(nn.Module):
    """The mean loss of the members. Each member learns from every row by itself.

    Outputs without members, of evaluation mode, get the loss of one network.
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss for outputs (batch, members, outputs) or (batch, outputs)."""
        if outputs.dim() == 2:
            return cast(Tensor, self.loss(outputs, targets))
        return cast(Tensor, self.loss(outputs.flatten(0, 1), targets.repeat_interleave(outputs.shape[1], dim=0)))
