"""What plans and schedules are held against: rules, and proven bounds; no line shared with the planners."""
