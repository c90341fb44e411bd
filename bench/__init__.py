"""Benchmarks: ratios, each measured together with its reference in one run on one machine."""
