"""The trial of `minllm doctor`: one kernel, compiled, run on the GPU and compared with its reference."""


def try_kernel() -> str:
    """The error of compiling SiLU, running it on the GPU and comparing it with its reference; "" for none."""
    try:
        import numpy as np

        from minllm.kernels.activation.silu import silu_and_multiply, silu_and_multiply_reference
        from minllm.runtime import memory

        gate_up = np.random.default_rng(0).standard_normal((3, 256), dtype=np.float32)
        out = memory.to_device(np.full((3, 128), np.nan, np.float32))
        silu_and_multiply(memory.to_device(gate_up), out)
        wrong = float(np.abs(out.copy_to_host() - silu_and_multiply_reference(gate_up)).max())
    except Exception as error:  # a broken installation may raise any exception
        return f"{type(error).__name__}: {error}"
    return "" if wrong < 1e-4 else f"its result is off by {wrong}"
