"""Tables of benchmarks: real ones, artificial ones, and how they are stored."""
