"""generation_config.json: sampling parameters suggested by a model's authors, and tokens that end a text.

Keys that change the generated text and have no counterpart in a request are collected in `not_followed`, for one warning at loading.
"""

from dataclasses import dataclass, field
from pathlib import Path

from minllm.errors import shown
from minllm.models.json_files import Fields, read_json

FILE = "generation_config.json"
FOLLOWED = frozenset(
    "do_sample temperature top_p top_k min_p repetition_penalty max_new_tokens max_length min_new_tokens stop_strings eos_token_id "
    "suppress_tokens bad_words_ids sequence_bias".split()
)
HARMLESS = frozenset(  # keys that change no text, or only how beams are searched
    "transformers_version _from_model_config _commit_hash trust_remote_code bos_token_id pad_token_id decoder_start_token_id "
    "use_cache cache_implementation cache_config max_cache_len return_dict_in_generate output_attentions output_hidden_states "
    "output_scores output_logits length_penalty early_stopping renormalize_logits remove_invalid_values is_assistant "
    "num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold assistant_early_exit assistant_lookbehind "
    "target_lookbehind assistant_ensemble_weight prompt_lookup_num_tokens max_matching_ngram_size speculation_type use_mtp "
    "compile_config disable_compile continuous_batching_config prefill_chunk_size low_memory".split()
)
OFF_AT_ONE = ("num_beams", "num_beam_groups", "num_return_sequences", "guidance_scale", "typical_p", "encoder_repetition_penalty")
TOKEN_KEYS = ("forced_bos_token_id", "forced_eos_token_id")  # for these 0 is a token
LONGEST_SHOWN = 40  # characters of a value in a warning


@dataclass(frozen=True)
class GenerationConfig:
    """The values of generation_config.json that minllm uses; None or empty if the file lacks them.

    suppress_tokens: ids that are never generated, those of bad_words_ids among them. token_biases: (id, number added to its logit), from
    sequence_bias. max_length: a limit of prompt and output together, which only a warning names. not_followed: "key=value" of each key that
    changes the text and that minllm does not follow. source: what errors name.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 keeps all
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    token_biases: tuple[tuple[int, float], ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    not_followed: tuple[str, ...] = ()
    source: str = field(default=FILE, compare=False)

    @property
    def suggests_sampling(self) -> bool:
        """Whether the file says how tokens are drawn."""
        return self.do_sample is False or any(value is not None for value in (self.temperature, self.top_p, self.top_k, self.min_p))


def read_generation_config(directory: Path | str) -> GenerationConfig:
    """The generation_config.json of a model directory; all None without the file.

    Raises CheckpointError if it is damaged.
    """
    path = Path(directory) / FILE
    if not path.exists():
        return GenerationConfig()
    fields = Fields(read_json(path), str(path))
    eos_token_ids, biases = fields.token_ids("eos_token_id"), _sequence_biases(fields)
    words = [ids for ids in _token_sequences(fields, "bad_words_ids") if ids not in [(end,) for end in eos_token_ids]]  # as in transformers
    several = {"bad_words_ids": words, "sequence_bias": [ids for ids, _ in biases]}
    return GenerationConfig(
        do_sample=fields.flag("do_sample", False) if "do_sample" in fields else None,
        temperature=fields.number("temperature", None),
        top_p=fields.number("top_p", None),
        top_k=fields.integer("top_k", None, minimum=-1),
        min_p=fields.number("min_p", None),
        repetition_penalty=fields.positive("repetition_penalty", None),
        max_new_tokens=fields.integer("max_new_tokens", None),
        max_length=fields.integer("max_length", None),
        min_new_tokens=fields.integer("min_new_tokens", None, minimum=0),
        stop_strings=_stop_strings(fields),
        suppress_tokens=tuple(dict.fromkeys([*fields.token_ids("suppress_tokens"), *(ids[0] for ids in words if len(ids) == 1)])),
        token_biases=tuple((ids[0], bias) for ids, bias in biases if len(ids) == 1),
        eos_token_ids=eos_token_ids,
        not_followed=(
            *(f"{key} of several tokens" for key, sequences in several.items() if any(len(ids) > 1 for ids in sequences)),
            *(f"{key}={shown(value, LONGEST_SHOWN)}" for key, value in fields.values.items() if _is_not_followed(key, value)),
        ),
        source=str(path),
    )


def _is_not_followed(key: str, value: object) -> bool:
    if key in FOLLOWED or key in HARMLESS or value is None:
        return False
    if key in TOKEN_KEYS:
        return True
    return bool(value) and not (key in OFF_AT_ONE and value == 1)


def _stop_strings(fields: Fields) -> tuple[str, ...]:
    given = fields.values.get("stop_strings")
    texts = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise fields.wrong("stop_strings", given, "a text or a list of texts that are not empty")
    return tuple(texts)


def _token_sequences(fields: Fields, key: str) -> list[tuple[int, ...]]:
    """A list of lists of token ids, each of at least one."""
    given = fields.values.get(key)
    sequences = [] if given is None else given
    if not isinstance(sequences, list) or not all(_are_token_ids(ids) for ids in sequences):
        raise fields.wrong(key, given, "a list of lists of token ids")
    return [tuple(ids) for ids in sequences]


def _sequence_biases(fields: Fields) -> list[tuple[tuple[int, ...], float]]:
    """[(token ids, number)] of sequence_bias, which JSON files hold as a list of pairs."""
    given = fields.values.get("sequence_bias")
    pairs = [] if given is None else given
    is_right = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 and _are_token_ids(pair[0]) for pair in pairs)
    if not is_right or not all(isinstance(bias, int | float) and bias == bias for _, bias in pairs):
        raise fields.wrong("sequence_bias", given, "a list of pairs, each a list of token ids and a number")
    return [(tuple(ids), float(bias)) for ids, bias in pairs]


def _are_token_ids(ids: object) -> bool:
    return isinstance(ids, list) and bool(ids) and all(type(token_id) is int and token_id >= 0 for token_id in ids)
