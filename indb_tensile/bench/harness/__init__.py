"""Parts that benchmarks share: networks, tables, rivals, processes, databases and printed results."""
