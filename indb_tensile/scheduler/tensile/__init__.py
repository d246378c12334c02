"""TENSILE as published, in parts: sequences of accesses, the calendar of the channel, swaps, re-runs."""
