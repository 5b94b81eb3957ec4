"""The type of weights and activations, by the option, the checkpoint and the GPU."""

import warnings

from minllm.errors import InvalidOptionError


def compute_dtype(wanted: str, stored: str, device: str) -> str:
    """The name of the dtype to compute in.

    wanted: the option; "auto" is what the checkpoint stores. A GPU without bfloat16 computes a bfloat16 checkpoint in float16, and a
    warning says so. Raises InvalidOptionError if bfloat16 was asked for and the GPU has none.
    """
    dtype = stored if wanted == "auto" else wanted
    if dtype != "bfloat16" or device == "cpu":
        return dtype
    from minllm.runtime.device import AMPERE, current_device

    gpu = current_device()
    if gpu.compute_capability >= AMPERE:
        return dtype
    without = f"{gpu.name}, of compute capability {'.'.join(map(str, gpu.compute_capability))}, has no bfloat16"
    if wanted != "auto":
        raise InvalidOptionError(f'dtype="bfloat16" is not allowed: {without}. Take "auto" or "float16", or "float32".')
    warnings.warn(f"{without}: this bfloat16 checkpoint is computed in float16.", UserWarning, stacklevel=2)
    return "float16"
