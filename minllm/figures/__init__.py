"""Figures of lessons and benchmarks: inline SVG for both light and dark pages."""
