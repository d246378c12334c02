"""Databases, controllers, clients and other processes of benchmarks: how they start, what they use, how they end."""
