"""The way of one job inside its trainer: read, capture, be admitted, train, publish."""
