"""Prepares a training: from a specification and a table to all that the training loop needs."""
