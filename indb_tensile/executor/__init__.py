"""Runs one job's step on the device as its plan says: capture, calibration, the compiled program and the state."""
