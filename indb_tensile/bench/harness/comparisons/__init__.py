"""Turns of planned training and PyTorch's own ways: on one device, on several ranks, and with larger batches."""
