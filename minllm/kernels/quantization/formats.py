"""The formats of cached keys and values: bits per number, numbers that share a scale, and bytes.

    int8      value = code * scale + zero, codes 0 to 255, a (scale, zero) per head and token
    int4      the same with codes 0 to 15, a (scale, zero) per 32 components
    fp8_e4m3  value = float8 * scale, 4 bits of exponent and 3 of fraction, largest 448; one scale per KV head and layer
    fp8_e5m2  the same with 5 bits of exponent and 2 of fraction, largest 57344
    kivi_int4 values as int4; for keys, 32 tokens share a (scale, zero) per component, a channel of the head

kivi_int4 is KIVI's format: some key channels are large in every token, and their own scale keeps them from coarsening their neighbours.
A group is quantised once its last token has arrived, so the newest tokens stay in full precision, in a residual window
(kernels/attention/residual_window/reference.py). The other formats may have such a window too. Recorded as "KV cache accuracy" in
docs/results/h200.json: fp8_e4m3 costs 0.57 % of perplexity without a window and 0.14 % with one of 256 tokens.

The integer formats are LMDeploy's: the minimum of a group becomes code 0 and the maximum the last code, so that no bit is lost on a
sign or on an unused range. Floats need no offset, because their steps grow with the number: a scale that keeps the largest number
below the format's limit is enough.

Sources: LMDeploy, "INT4/INT8 KV Cache"; Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1; vLLM, "Quantized KV Cache";
Liu et al. 2024, "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", section 3.
"""

from dataclasses import dataclass

from minllm.errors import KernelArgumentError
from minllm.kernels.quantization.groups import INT4_GROUP, TOKEN_GROUP

CODE_BITS = {"int8": 8, "int4": 4, "fp8_e4m3": 8, "fp8_e5m2": 8, "kivi_int4": 4}
ALIASES = {"fp8": "fp8_e4m3"}  # vLLM's alias
TOKEN_FORMATS = ("int8", "int4", "fp8_e4m3", "fp8_e5m2")  # a token is quantised as it arrives
CHANNEL_FORMATS = ("kivi_int4",)  # a key is quantised together with its group
KV_FORMATS = (*TOKEN_FORMATS, *CHANNEL_FORMATS)
PAIR_BYTES = 4  # scale and zero in float16
RESIDUAL_WINDOW = 128  # tokens; the default for formats that need a window, as in KIVI
FP8_SINCE = (8, 9)  # the first compute capability that converts to and from fp8
CHUNK_BITS = 128  # bits of a head's codes per load; a group's codes are whole chunks too


@dataclass(frozen=True)
class KvFormat:
    """A format for heads of head_dim components.

    Each group of group_size neighbours shares a scale (fp8: the whole head).
    token_group: if above 1, groups of this many tokens share a scale per key channel, and group_size applies to values only.
    """

    name: str
    bits: int
    head_dim: int
    group_size: int
    token_group: int = 1

    @property
    def keys_by_channel(self) -> bool:
        """Whether keys have a scale per channel and token_group tokens."""
        return self.token_group > 1

    @property
    def is_float(self) -> bool:
        """Whether codes are 8-bit floats rather than integers."""
        return self.name.startswith("fp8")

    @property
    def groups(self) -> int:
        """Number of groups per head."""
        return self.head_dim // self.group_size

    @property
    def code_bytes(self) -> int:
        """Bytes of a head's codes."""
        return self.head_dim * self.bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of a head's scales and zeros per token; 0 for floats. By channel, a key's share of its group's scales is as large."""
        return 0 if self.is_float else PAIR_BYTES * self.groups

    @property
    def bytes_per_head(self) -> int:
        """Bytes of one head of one token, for keys or for values."""
        return self.code_bytes + self.scale_bytes

    @property
    def levels(self) -> int:
        """The largest code of an integer format."""
        return 2**self.bits - 1


def default_window(name: str) -> int:
    """Default residual window of a cache in this format, in tokens."""
    return RESIDUAL_WINDOW if name in CHANNEL_FORMATS else 0


def full_name(name: str) -> str:
    """The format's own name for a name or an alias. Raises KernelArgumentError for an unknown one."""
    found = ALIASES.get(name, name)
    if found not in CODE_BITS:
        raise KernelArgumentError(f"there is no KV format {name!r}; there are {', '.join([*KV_FORMATS, *ALIASES])}")
    return found


def kv_format(name: str, head_dim: int, group_size: int | None = None) -> KvFormat:
    """The format called `name` for heads of `head_dim`; group_size None takes the format's default.

    Raises KernelArgumentError for an unknown name; for a head_dim with codes that are not whole 16 bytes; for a group size that is neither
    head_dim nor a power of two of whole 16 bytes that divides it; for float formats, for a group size other than head_dim; and for keys by
    channel, for one other than INT4_GROUP.
    """
    name = full_name(name)
    chunk = CHUNK_BITS // CODE_BITS[name]  # components in 16 bytes
    if head_dim < chunk or head_dim % chunk:
        raise KernelArgumentError(
            f"head_dim {head_dim} cannot be cached as {name}, whose heads are whole 16 bytes: it must be a multiple of {chunk}; "
            "take another format, or kv_cache_dtype='auto'"
        )
    if group_size is None:
        group_size = INT4_GROUP if CODE_BITS[name] == 4 else head_dim
    powers = [chunk << i for i in range(8) if head_dim % (chunk << i) == 0]
    if group_size not in (*powers, head_dim):
        allowed = ", ".join(map(str, sorted({*powers, head_dim})))
        raise KernelArgumentError(f"a group of {group_size} does not fit {name} and a head of {head_dim}; it may be {allowed}")
    if name.startswith("fp8") and group_size != head_dim:
        raise KernelArgumentError(f"{name} has one scale a head; group_size {group_size} must be head_dim, {head_dim}")
    if name in TOKEN_FORMATS:
        return KvFormat(name, CODE_BITS[name], head_dim, group_size)
    if group_size != INT4_GROUP:
        raise KernelArgumentError(f"{name} has values in groups of {INT4_GROUP}, as many as tokens share a key's scales; not {group_size}")
    return KvFormat(name, CODE_BITS[name], head_dim, group_size, TOKEN_GROUP)
