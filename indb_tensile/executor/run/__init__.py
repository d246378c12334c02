"""Compiles a step graph and a plan into a step program, and runs it."""
