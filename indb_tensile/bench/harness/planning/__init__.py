"""Rivals and bounds of plans and of placement."""
