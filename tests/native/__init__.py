"""The native device library: C++ tests of its parts (run.sh), Python tests of its use by several processes."""
