"""Turns tables into tensors and trained weights into models. The training loop itself is not in this package."""
