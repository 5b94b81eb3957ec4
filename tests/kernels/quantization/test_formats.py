"""The formats' bytes, and what they refuse."""

import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.quantization.formats import KV_FORMATS, kv_format


@pytest.mark.parametrize(
    ("name", "head_dim", "groups", "bytes_per_head"),
    [
        ("int8", 128, 1, 132),
        ("int4", 128, 4, 80),
        ("int4", 64, 2, 40),
        ("int4", 96, 3, 60),
        ("int8", 80, 1, 84),
        ("fp8_e4m3", 128, 1, 128),
        ("fp8_e5m2", 256, 1, 256),
        ("kivi_int4", 128, 4, 80),
    ],
)
def test_bytes(name, head_dim, groups, bytes_per_head):
    found = kv_format(name, head_dim)
    assert (found.groups, found.bytes_per_head) == (groups, bytes_per_head)


def test_fp8_is_vllms_name_of_e4m3():
    assert kv_format("fp8", 64) == kv_format("fp8_e4m3", 64)


def test_an_unknown_format_names_those_that_there_are():
    with pytest.raises(KernelArgumentError, match=", ".join(KV_FORMATS)):
        kv_format("int2", 64)


@pytest.mark.parametrize(("head_dim", "group_size"), [(64, 48), (64, 8), (64, 128), (64, 0), (72, None), (0, None)])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_sizes_that_do_not_divide_are_refused(name, head_dim, group_size):
    with pytest.raises(KernelArgumentError, match="multiple of|does not fit"):
        kv_format(name, head_dim, group_size)


def test_a_float_format_has_one_scale_a_head():
    with pytest.raises(KernelArgumentError, match="one scale a head"):
        kv_format("fp8", 64, 32)


def test_keys_by_channel_cost_what_values_cost():
    """64 bytes of codes a token, and 4 bytes for each channel of a group of tokens or for each group of a token's components."""
    found = kv_format("kivi_int4", 128)
    assert found.keys_by_channel and not kv_format("int4", 128).keys_by_channel
    assert found.bytes_per_head == 64 + 4 * 128 / found.token_group
    with pytest.raises(KernelArgumentError, match="groups of 32"):
        kv_format("kivi_int4", 128, 64)
