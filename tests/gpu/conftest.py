"""Every test in this folder needs a CUDA device, and says why it is skipped without one."""

import pytest

from minllm import LLM, held_out_text
from minllm.runtime.device import is_available


def pytest_collection_modifyitems(items):
    if not is_available():
        for item in items:
            if "/tests/gpu/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="no CUDA device: this test runs its kernels on a GPU"))


class Gpu:
    """Arrays are copied to the device and back."""

    name = "gpu"

    def array(self, host):
        """A device copy of `host`."""
        from minllm.runtime.memory import to_device

        return to_device(host)

    def host(self, array):
        """A NumPy copy of a device array."""
        return array.copy_to_host()


@pytest.fixture
def device():
    """The GPU in place of the simulator."""
    return Gpu()


@pytest.fixture(scope="module")
def token_ids():
    """300 tokens of text that the bundled model has not seen."""
    with LLM(device="cpu", max_num_seqs=1, max_model_len=320) as llm:
        return llm.tokenizer.encode(held_out_text()[4000:5000])[:300]
