"""Process entry points: the composition roots, one per process."""
