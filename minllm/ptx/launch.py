"""Programmatic dependent launch: a kernel starts while its predecessor in the stream still runs.

PTX ISA, "griddepcontrol".
"""

from minllm.ptx.instruction import instruction
from minllm.sim.thread import current_thread


def griddepcontrol_wait():
    """Wait until the kernels before this one in the stream have finished and their writes are visible."""
    current_thread().has_waited_for_predecessors = True


def griddepcontrol_launch_dependents():
    """Allow the next kernel of the stream to start once all blocks have executed this or ended."""


griddepcontrol_wait = instruction("griddepcontrol.wait;", emulation=griddepcontrol_wait, touches_memory=True)
griddepcontrol_launch_dependents = instruction(
    "griddepcontrol.launch_dependents;", emulation=griddepcontrol_launch_dependents, touches_memory=True
)
