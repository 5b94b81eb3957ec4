"""Checks of the exercises, `check(my_kernel)` or `check("matmul.naive", my_kernel)`, with a module per ladder."""

from minllm.course.checks.doors import check, check_file
from minllm.course.checks.ladder import Report

__all__ = ["Report", "check", "check_file"]
