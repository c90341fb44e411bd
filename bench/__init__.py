"""Benchmarks: ratios measured in one run on one machine, each beside the thing it is compared to."""
