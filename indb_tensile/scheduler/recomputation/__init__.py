"""Which tensors can be computed again in which gaps between their accesses, and what that costs."""
