"""The command line `tensile`."""
