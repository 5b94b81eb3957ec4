"""The serving benchmark: latency and throughput of many requests that arrive over time."""
