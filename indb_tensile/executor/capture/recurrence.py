"""Gated recurrent units as the library computes them, in operators that can be captured without changing a bit.

The library adds and squashes the gates in place, on slices of one tensor. A captured step has no such updates: what
was a slice of a larger tensor would be a small tensor of its own, and a kernel that walks through it in other strides
takes the last elements of a row from its scalar code and not from its vector code. Results would differ from those of
the plain loop in the last bit. So the sums of both gates are put side by side again before they are squashed.

Layers, directions and the dropout between layers follow torch.nn.GRU on a processor.
"""

from collections.abc import Sequence

import torch

_Sequence = list[torch.Tensor]  # one tensor per moment


def gru(
    inputs: torch.Tensor,
    state: torch.Tensor,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::gru.input: `inputs` (T, B, F), or (B, T, F) with `batch_first`; `state` (layers x directions, B, H).

    Returns every moment's outputs (T, B, directions x H), or batch first, and the last states, as `state`.
    """
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    given = list(state.unbind(0))
    last: list[torch.Tensor] = []
    outputs = inputs.transpose(0, 1) if batch_first else inputs
    for layer in range(num_layers):
        found = []
        for direction in range(directions):
            number = layer * directions + direction
            weights = params[number * each : (number + 1) * each]
            moments, final = _direction(outputs, given[number], weights, backwards=direction == 1)
            found.append(torch.stack(moments, 0))
            last.append(final)
        outputs = torch.cat(found, -1) if bidirectional else found[0]
        if dropout and train and layer < num_layers - 1:
            outputs = torch.dropout(outputs, dropout, train)
    return outputs.transpose(0, 1) if batch_first else outputs, torch.stack(last, 0)


def _direction(
    inputs: torch.Tensor, state: torch.Tensor, weights: Sequence[torch.Tensor], *, backwards: bool
) -> tuple[_Sequence, torch.Tensor]:
    """One layer in one direction; the inputs' part of all gates is computed for all moments at once."""
    of_input, of_state, *biases = weights
    input_bias, state_bias = biases or (None, None)
    moments = list(torch.nn.functional.linear(inputs, of_input, input_bias).unbind(0))
    outputs = []
    for moment in reversed(moments) if backwards else moments:
        state = _cell(moment, torch.nn.functional.linear(state, of_state, state_bias), state)
        outputs.append(state)
    return outputs[::-1] if backwards else outputs, state


def _cell(from_input: torch.Tensor, from_state: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The next state, from both parts of the reset, update and new gate (B, 3 H)."""
    input_reset, input_update, input_new = from_input.chunk(3, 1)
    state_reset, state_update, state_new = from_state.chunk(3, 1)
    side_by_side = torch.cat([state_reset + input_reset, state_update + input_update], 1)
    reset, update = (gate.sigmoid() for gate in side_by_side.chunk(2, 1))
    new = (input_new + state_new * reset).tanh()
    return (state - new) * update + new
