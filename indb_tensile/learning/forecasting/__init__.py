"""Series: their grid, windows, seasons, and forecasts without a network."""
