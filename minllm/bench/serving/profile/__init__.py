"""The GPU's work while requests are served: a trace by torch's profiler, the time of each stage of a step, and idle times."""
