"""Foretell when jobs are done, and choose the jobs that run side by side so that all are done soonest."""
