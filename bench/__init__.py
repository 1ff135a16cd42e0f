"""The benchmarks of Sluice and of hand-written jobs; `python -m bench` runs them."""
