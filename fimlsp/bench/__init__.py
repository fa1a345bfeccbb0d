"""Benchmarks that print ratios from one run on one machine."""
