"""What disturbs, watches and judges the system of `tensile bench chaos`."""
