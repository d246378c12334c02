"""Kinds of small networks whose planned training must equal plain PyTorch, and that plain training."""
