"""Search for plans of one graph: keep, swap or recompute each tensor, evaluated by exact load and time."""
