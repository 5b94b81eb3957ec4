"""The serving benchmark: many requests that arrive over time, and the latency and throughput that they get."""
