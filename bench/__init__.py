"""Benchmarks: side by side with the alternative, in one run, several rounds, as ratios. See docs/benchmarks.md."""
