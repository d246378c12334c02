"""Rows of figures, and the tables that show them."""
