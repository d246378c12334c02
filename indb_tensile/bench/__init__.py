"""Benchmarks. One command reproduces each performance figure that the project claims."""
