"""Measurements of Sluice beside what people write by hand; `python -m bench` runs them."""
