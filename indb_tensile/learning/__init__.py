"""Tables to tensors to models: everything that is learned from and judged, but not the training itself."""
