"""Check plans and schedules against rules and proven bounds. The code is independent of the planners."""
