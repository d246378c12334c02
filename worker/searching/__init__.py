"""The steps that the steward of searches takes in one search."""
