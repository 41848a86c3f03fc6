"""Benchmarks of this package, run by `topics bench` and, at a toy size, by the tests."""
