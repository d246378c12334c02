"""What to move, when, and who may run; pure functions of frozen values."""
