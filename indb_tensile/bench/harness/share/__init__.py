"""The mixes of jobs, methods, measures and bars of `tensile bench share`."""
