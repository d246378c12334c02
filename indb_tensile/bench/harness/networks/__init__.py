"""Networks to plan for: captured ones, and synthetic step graphs of any size."""
