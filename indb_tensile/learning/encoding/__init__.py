"""Turns columns into the tensors that networks read, and targets into what losses take."""
