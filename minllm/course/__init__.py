"""What lessons are made of: kernels' own source on the page, recorded measurements, predictions, and figures that suit both colour schemes.

Nothing of the engine imports this, and it needs nothing that the engine does not. lessons/README.md shows how a lesson uses it.
"""

from minllm.course.bars import Bar, bars
from minllm.course.curves import curves
from minllm.course.figure import Figure
from minllm.course.heat_map import heat_map
from minllm.course.machine import has_gpu, machine_line, timed
from minllm.course.prediction import Prediction
from minllm.course.records import Measurement, load_record, recorded
from minllm.course.roofline import Dot, roofline
from minllm.course.source import show_docstring, show_source
from minllm.course.timeline import Span, timeline

__all__ = [
    "Bar",
    "Dot",
    "Figure",
    "Measurement",
    "Prediction",
    "Span",
    "bars",
    "curves",
    "has_gpu",
    "heat_map",
    "load_record",
    "machine_line",
    "recorded",
    "roofline",
    "show_docstring",
    "show_source",
    "timed",
    "timeline",
]
