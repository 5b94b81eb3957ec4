"""Benchmarks and their report card."""
