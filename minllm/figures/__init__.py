"""Figures of lessons and benchmarks: inline SVG that suits a light and a dark page at once."""
