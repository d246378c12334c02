"""The memory that a plan takes: residency intervals, peaks and addresses."""
