"""One job's step on the device, following a plan: capture, calibration, the compiled step, the state."""
