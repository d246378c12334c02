"""Run jobs side by side in phases: iterations shifted in time, and the gates that enforce the shifts."""
