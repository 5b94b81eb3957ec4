"""The virtual policy: contiguous addresses for every sequence, and pages of memory mapped behind them as they fill."""
