"""Generates the reference page of options and settings from the tables that check them."""
