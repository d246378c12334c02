"""One module for each benchmark that `tensile bench NAME` runs; the module has the name of the command."""
