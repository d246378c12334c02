"""Gated recurrent units with torch's own bits, built from operators that can be captured.

Torch adds the gates and applies the sigmoid in place, on slices of one tensor. A captured step has no such updates: a
slice of a larger tensor would be a separate small tensor. A kernel that walks such a tensor with other strides
computes the last elements of a row in its scalar code instead of its vector code, so results would differ from the
plain loop in the last bit. So the sums of both gates are concatenated before the sigmoid.

Layers, directions and the dropout between layers follow torch.nn.GRU on a processor.
"""

from collections.abc import Sequence

import torch

_Sequence = list[torch.Tensor]  # one tensor per time step


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
    """Compute aten::gru.input.

    `inputs` are (T, B, F), or (B, T, F) with `batch_first`; `state` is (layers x directions, B, H). Returns the
    outputs of every time step (T, B, directions x H), or batch first, and the last states, shaped like `state`.
    """
    directions = 2 if bidirectional else 1
    weights_per_direction = 4 if has_biases else 2
    initial_states = list(state.unbind(0))
    last: list[torch.Tensor] = []
    outputs = inputs.transpose(0, 1) if batch_first else inputs
    for layer in range(num_layers):
        layer_outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            weights = params[number * weights_per_direction : (number + 1) * weights_per_direction]
            step_outputs, final = _direction(outputs, initial_states[number], weights, backwards=direction == 1)
            layer_outputs.append(torch.stack(step_outputs, 0))
            last.append(final)
        outputs = torch.cat(layer_outputs, -1) if bidirectional else layer_outputs[0]
        if dropout and train and layer < num_layers - 1:
            outputs = torch.dropout(outputs, dropout, train)
    return outputs.transpose(0, 1) if batch_first else outputs, torch.stack(last, 0)


def _direction(
    inputs: torch.Tensor, state: torch.Tensor, weights: Sequence[torch.Tensor], *, backwards: bool
) -> tuple[_Sequence, torch.Tensor]:
    """Compute one layer in one direction. The inputs' part of all gates is computed for all time steps at once."""
    of_input, of_state, *biases = weights
    input_bias, state_bias = biases or (None, None)
    input_gates = list(torch.nn.functional.linear(inputs, of_input, input_bias).unbind(0))
    outputs = []
    for input_gate in reversed(input_gates) if backwards else input_gates:
        state = _cell(input_gate, torch.nn.functional.linear(state, of_state, state_bias), state)
        outputs.append(state)
    return outputs[::-1] if backwards else outputs, state


def _cell(from_input: torch.Tensor, from_state: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Return the next state, from both parts of the reset, update and new gate (B, 3 H)."""
    input_reset, input_update, input_new = from_input.chunk(3, 1)
    state_reset, state_update, state_new = from_state.chunk(3, 1)
    side_by_side = torch.cat([state_reset + input_reset, state_update + input_update], 1)
    reset, update = (gate.sigmoid() for gate in side_by_side.chunk(2, 1))
    new = (input_new + state_new * reset).tanh()
    return (state - new) * update + new
