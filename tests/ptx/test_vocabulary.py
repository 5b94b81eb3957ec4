"""Every function of minllm.ptx stands beside its emulation, under the same name, and says what it does."""

import pytest

from minllm import ptx


@pytest.mark.parametrize("name", ptx.__all__)
def test_an_instruction_carries_its_emulation_and_its_documentation(name):
    function = getattr(ptx, name)
    function = ptx.make_wgmma(64) if name == "make_wgmma" else function
    written_in_python = getattr(function, "py_func", None)  # device functions need no emulation
    assert written_in_python or function.emulation.__name__ == function.__qualname__
    assert name == "make_wgmma" or (written_in_python or function).__qualname__ == name
    assert len((written_in_python or function).__doc__) > 30


def test_the_list_of_names_is_sorted_and_whole():
    instructions = [name for name, value in vars(ptx).items() if hasattr(value, "emulation") or hasattr(value, "py_func")]
    assert sorted([*instructions, "make_wgmma"]) == sorted(ptx.__all__) and len(set(ptx.__all__)) == len(ptx.__all__)
