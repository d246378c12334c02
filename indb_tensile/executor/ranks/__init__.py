"""Compute one step on several devices together: what the ranks exchange."""
