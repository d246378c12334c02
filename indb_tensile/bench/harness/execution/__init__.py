"""A network in training on a device: its sizes, its process, and the memory and link of its device."""
