"""The search for plans of one graph: keep, swap or make again, by exact load and time."""
