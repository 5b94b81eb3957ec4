"""The formats that keys and values are cached in: how many bits a number has, which numbers share a scale, how many bytes that is.

    int8      value = code * scale + zero, codes 0 to 255, a (scale, zero) for each head of each token
    int4      the same with codes 0 to 15, a (scale, zero) for each 32 components
    fp8_e4m3  value = float8 * scale, 4 bits of exponent and 3 of fraction, largest 448; one scale a KV head and layer
    fp8_e5m2  the same with 5 bits of exponent and 2 of fraction, largest 57344
    kivi_int4 values as int4; of keys, 32 tokens share a (scale, zero) for each component, a channel of the head

kivi_int4 is KIVI's form: keys have channels that are large in every token, and a scale of their own keeps them from their neighbours'. A
group has its codes once its last token is there, so that the newest tokens are kept as they are, in a residual window
(kernels/attention/residual_window/reference.py). The other formats may have such a window too. What that buys: with the bundled model's
held-out text on an H200, fp8_e4m3 costs 0.30 % of perplexity without a window and 0.04 % with one of 256 tokens, int4 1.86 % and, with 128,
0.07 % (`minllm bench accuracy`; int8 0.04 % without, kivi_int4 0.13 % with its 128).

The integers are LMDeploy's form: the smallest number of a group becomes code 0 and the largest the last code, so that no bit is lost on a
sign or on a range that is not used. Floats need no such care, because their steps grow with the number: a scale that keeps the largest
below the format's own limit is enough.

Sources: LMDeploy, "INT4/INT8 KV Cache"; Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1; vLLM, "Quantized KV Cache";
Liu et al. 2024, "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", section 3.
"""

from dataclasses import dataclass

from minllm.errors import KernelArgumentError

CODE_BITS = {"int8": 8, "int4": 4, "fp8_e4m3": 8, "fp8_e5m2": 8, "kivi_int4": 4}
ALIASES = {"fp8": "fp8_e4m3"}  # vLLM's
TOKEN_FORMATS = ("int8", "int4", "fp8_e4m3", "fp8_e5m2")  # a token's codes are made when it comes
CHANNEL_FORMATS = ("kivi_int4",)  # a key's codes are made with those of its group
KV_FORMATS = (*TOKEN_FORMATS, *CHANNEL_FORMATS)
INT4_GROUP = 32  # components
TOKEN_GROUP = 32  # tokens that become codes together where keys are quantised by channel; residual windows are multiples of it
PAIR_BYTES = 4  # scale and zero in float16
RESIDUAL_WINDOW = 128  # tokens, where a format needs a window and none is given: KIVI's own
FP8_SINCE = (8, 9)  # the compute capability from which GPUs convert to and from fp8
CHUNK_BITS = 128  # of a head's codes, that a thread loads at one time; a group's codes are whole chunks too


@dataclass(frozen=True)
class KvFormat:
    """A format for heads of head_dim components, of which group_size neighbours share a scale (fp8: the whole head).

    token_group: where it is above 1, so many tokens share the scales of each channel of their keys, and only values are as group_size says.
    """

    name: str
    bits: int
    head_dim: int
    group_size: int
    token_group: int = 1

    @property
    def keys_by_channel(self) -> bool:
        """Whether a key's scales are those of its channels, for token_group tokens."""
        return self.token_group > 1

    @property
    def is_float(self) -> bool:
        """Whether codes are 8-bit floats rather than integers."""
        return self.name.startswith("fp8")

    @property
    def groups(self) -> int:
        """Groups of a head."""
        return self.head_dim // self.group_size

    @property
    def code_bytes(self) -> int:
        """Bytes of a head's codes."""
        return self.head_dim * self.bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of a head's scales and zeros that every token has anew; none for floats. A key's share of its group's is as large."""
        return 0 if self.is_float else PAIR_BYTES * self.groups

    @property
    def bytes_a_head(self) -> int:
        """Bytes of one head of one token, of keys or of values."""
        return self.code_bytes + self.scale_bytes

    @property
    def levels(self) -> int:
        """The largest code of an integer format."""
        return 2**self.bits - 1


def default_window(name: str) -> int:
    """Tokens of the residual window that a cache of this format has where nobody asks for another."""
    return RESIDUAL_WINDOW if name in CHANNEL_FORMATS else 0


def full_name(name: str) -> str:
    """The format's own name for a name or an alias; KernelArgumentError where there is none."""
    found = ALIASES.get(name, name)
    if found not in CODE_BITS:
        raise KernelArgumentError(f"there is no KV format {name!r}; there are {', '.join([*KV_FORMATS, *ALIASES])}")
    return found


def kv_format(name: str, head_dim: int, group_size: int | None = None) -> KvFormat:
    """The format called `name` for heads of `head_dim`; group_size None is the format's own.

    Raises KernelArgumentError for an unknown name, a head_dim whose codes are not whole 16 bytes, a group size that is neither head_dim
    nor a power of two of whole 16 bytes that divides it, for float formats with a group size other than head_dim, and for keys by channel
    with one other than INT4_GROUP.
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
