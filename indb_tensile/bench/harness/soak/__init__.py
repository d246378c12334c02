"""Processes that `tensile bench soak` kills, and those that must not be affected."""
