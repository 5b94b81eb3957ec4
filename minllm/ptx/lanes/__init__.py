"""The vector forms of instructions, for the simulator's lanes: each computes for all lanes what the emulation computes for one thread.

A form takes the state of the lanes, then the instruction's operands: vectors with one number a lane, numbers that are the same for all
lanes, or arrays. It is attached to the emulation as `.in_lanes`; instructions without one run in the threads, unless they are functions
of numbers alone, which are called for one lane after the other.
"""

from minllm.ptx.lanes import copies, matrix, meetings, memory, numbers, products

__all__ = ["copies", "matrix", "meetings", "memory", "numbers", "products"]
