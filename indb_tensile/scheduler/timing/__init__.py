"""The time that a plan takes: latencies of operators, copies on the link, and the simulator."""
