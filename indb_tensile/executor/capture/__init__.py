"""Captures the model, its loss and its optimizer as one static step graph."""
