"""generation_config.json: sampling parameters suggested by a model's authors, and tokens that end a text."""

from dataclasses import dataclass
from pathlib import Path

from minllm.models.json_files import Fields, read_json


@dataclass(frozen=True)
class GenerationConfig:
    """The values of generation_config.json that minllm uses; None if the file lacks them."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 keeps all
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    eos_token_ids: tuple[int, ...] = ()


def read_generation_config(directory: Path | str) -> GenerationConfig:
    """The generation_config.json of a model directory; all None without the file.

    Raises CheckpointError if it is damaged.
    """
    path = Path(directory) / "generation_config.json"
    if not path.exists():
        return GenerationConfig()
    fields = Fields(read_json(path), str(path))
    return GenerationConfig(
        do_sample=fields.flag("do_sample", False) if "do_sample" in fields else None,
        temperature=fields.number("temperature", None),
        top_p=fields.number("top_p", None),
        top_k=fields.integer("top_k", None, minimum=0),
        min_p=fields.number("min_p", None),
        repetition_penalty=fields.positive("repetition_penalty", None),
        max_new_tokens=fields.integer("max_new_tokens", None),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )
