"""The GPU's work while requests are served: a trace by torch's profiler, times of a step's stages, idle times."""
