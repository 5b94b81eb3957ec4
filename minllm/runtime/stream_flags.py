"""Flags in device memory that a stream raises and waits for, between processes that map the same memory.

A flag is a word of 32 bits: 1 if it is raised. The stream itself waits, so neither the host nor an SM is occupied, and a capture records
the operations. Source: CUDA Driver API, Stream Memory Operations (cuStreamWaitValue32, cuStreamWriteValue32).
"""

from minllm.runtime.device import check_driver

FLAG_BYTES = 4
DOWN, RAISED = 0, 1


def raise_flag(address: int, stream: int) -> None:
    """Raise the flag when the work before it on the stream is done, and all processes can see what that work wrote."""
    _write(address, RAISED, stream)


def take_flag(address: int, stream: int) -> None:
    """Let the stream wait until the flag is raised, and lower it."""
    from cuda.bindings import driver

    is_equal = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ.value
    check_driver(driver.cuStreamWaitValue32(stream, address, RAISED, is_equal), "let a stream wait for a flag")
    _write(address, DOWN, stream)


def copy_bytes(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy bytes from one device address to another, in stream order."""
    from cuda.bindings import driver

    check_driver(driver.cuMemcpyDtoDAsync(target, source, nbytes, stream), f"start to copy {nbytes} bytes on the GPU")


def _write(address: int, value: int, stream: int) -> None:
    from cuda.bindings import driver

    orders_memory = driver.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT.value
    check_driver(driver.cuStreamWriteValue32(stream, address, value, orders_memory), "write a flag")
