"""Measures, predicts and corrects the latencies of a step's operators."""
