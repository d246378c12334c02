"""What the steward of searches does in one search."""
