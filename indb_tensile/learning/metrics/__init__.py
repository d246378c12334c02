"""Figures of arrays: areas, errors, confusion matrices, curves. They know no model and no table."""
