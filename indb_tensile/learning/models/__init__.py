"""A trained model: its stored form, its checks, and its answers beside its network."""
