"""Divides encoded rows into batches and gathers them: order, shuffling, prefetching, mixing."""
