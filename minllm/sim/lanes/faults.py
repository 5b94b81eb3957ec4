"""Why a launch goes to the threads: their engine runs it, and its verdict stands."""


class NotInLanes(Exception):
    """The lanes have no form of something in the kernel, or of a value that occurs in this launch."""


class Fault(Exception):
    """A vector check has seen what may be a mistake in the kernel."""


class BlocksMeet(Exception):
    """Blocks that run in one vector touch the same memory, so each must run by itself."""
