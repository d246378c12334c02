"""The steps of one job inside its trainer: read, capture, wait for admission, train, publish."""
