"""Benchmarks, each beside its yardstick. Figures are compared within one run, never across machines."""
