"""The entry points of the processes, one module per process, each of which builds and connects its objects."""
