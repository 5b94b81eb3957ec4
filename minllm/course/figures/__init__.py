"""Figures of lessons: inline SVG that suits a light and a dark page at once."""
