"""The report card of a generation: times, bytes moved, and the achieved share of the memory ceiling."""

from dataclasses import dataclass, replace

from rich.text import Text

from minllm import costs
from minllm.engine.requests.default_params import described
from minllm.engine.requests.outputs import RequestMetrics
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.machine import driver, hardware
from minllm.models.config import ModelConfig


@dataclass(frozen=True)
class ReportCard:
    """One generation of one sequence. Rates are None if undefined (a single token has no decode time).

    bytes_per_token: bytes that a decode step must move in the middle of the generation, weights plus keys and values.
    memory_tb_s: those bytes times the decode rate. share_of_ceiling: memory_tb_s over the GPU's ceiling; None on a CPU and on GPUs
    that are not in hardware.py.
    """

    model: str
    device: str
    dtype: str
    prompt_tokens: int
    generated_tokens: int
    time_to_first_token_s: float | None
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    bytes_per_token: int
    memory_tb_s: float | None
    ceiling_tb_s: float | None
    ceiling_source: str | None
    share_of_ceiling: float | None
    yours: tuple[str, ...] = ()  # stages that a kernel of the user computed
    sampling: str | None = None  # how tokens were drawn; None if the card is of a benchmark

    def named(self, model: str) -> "ReportCard":
        """The same card with another model name."""
        return replace(self, model=model)

    def against(self, measured_copy_tb_s: float | None) -> "ReportCard":
        """The same card relative to a ceiling measured in the same run; unchanged if that is None."""
        if measured_copy_tb_s is None:
            return self
        share = self.memory_tb_s / measured_copy_tb_s if self.memory_tb_s is not None else None
        return replace(self, ceiling_tb_s=measured_copy_tb_s, ceiling_source="copy measured now", share_of_ceiling=share)


def card_of(llm, metrics: RequestMetrics, params: SamplingParams | None = None) -> ReportCard:
    """The card of one finished request. llm: the LLM that computed it. metrics: those of its RequestOutput. params: the request's."""
    engine = llm.engine
    on_gpu = llm.device == "cuda"
    card = report_card(
        engine.model.config,
        model=engine.path.name,
        device=driver.device_name() if on_gpu else "cpu",
        dtype=str(engine.ops.dtype),
        itemsize=engine.ops.dtype.itemsize,
        kv_itemsize=engine.cache.shape.bytes_per_head / engine.cache.shape.head_dim,
        prompt_tokens=metrics.prompt_tokens,
        generated_tokens=metrics.generated_tokens,
        time_to_first_token=metrics.time_to_first_token,
        decode_tokens_per_second=metrics.decode_tokens_per_second,
    )
    sampling = None if params is None else described(params, engine.generation_config)
    return replace(card, yours=tuple(engine.ops.own_stages), sampling=sampling)


def report_card(
    config: ModelConfig,
    *,
    model: str,
    device: str,
    dtype: str,
    itemsize: int,
    prompt_tokens: int,
    generated_tokens: int,
    time_to_first_token: float | None,
    decode_tokens_per_second: float | None,
    kv_itemsize: float | None = None,
) -> ReportCard:
    """The card of a generation, with the limits of its GPU.

    device: the GPU's name by its driver, or "cpu". itemsize: bytes per weight. kv_itemsize: bytes per cached number, including its share of
    the scales; None: the same as for weights.
    """
    middle = prompt_tokens + (generated_tokens + 1) // 2
    step = costs.decode_step(config, batch=1, context=max(middle, 1), itemsize=itemsize, kv_itemsize=kv_itemsize or itemsize)
    gpu = hardware.find_gpu(device)
    memory = step.bytes * decode_tokens_per_second / 1e12 if decode_tokens_per_second else None
    return ReportCard(
        model=model,
        device=device,
        dtype=dtype,
        prompt_tokens=prompt_tokens,
        generated_tokens=generated_tokens,
        time_to_first_token_s=time_to_first_token,
        prefill_tokens_per_s=prompt_tokens / time_to_first_token if time_to_first_token else None,
        decode_tokens_per_s=decode_tokens_per_second,
        bytes_per_token=step.bytes,
        memory_tb_s=memory,
        ceiling_tb_s=gpu.ceiling_tb_s if gpu else None,
        ceiling_source=gpu.ceiling_source if gpu else None,
        share_of_ceiling=memory / gpu.ceiling_tb_s if gpu and memory is not None else None,
    )


def as_text(card: ReportCard) -> Text:
    """The card for a terminal: one fact per line."""
    text = Text("report card", style="bold")
    for name, value in lines(card):
        text.append(f"\n{name:<22}", style="not bold dim").append(value, style="not bold")
    return text


def lines(card: ReportCard) -> list[tuple[str, str]]:
    """(name, value) for every line of the card, as text."""
    on = "NumPy on CPU" if card.device == "cpu" else card.device
    rows = [
        ("model", f"{card.model}, {card.dtype}"),
        ("device", on),
        ("prompt", f"{card.prompt_tokens} tokens"),
        ("generated", f"{card.generated_tokens} tokens"),
    ]
    if card.sampling is not None:
        rows.append(("sampling", card.sampling))
    rows += [(stage, "yours") for stage in card.yours]
    if card.time_to_first_token_s is not None:
        prefill = f"{1e3 * card.time_to_first_token_s:.1f} ms ({card.prefill_tokens_per_s:,.0f} prompt tokens a second)"
        rows.append(("time to first token", prefill))
    if card.decode_tokens_per_s is not None:
        rows.append(("decode", f"{card.decode_tokens_per_s:,.1f} tokens a second"))
    if card.memory_tb_s is not None and card.device != "cpu":
        rows.append(("bytes moved a token", _bytes(card.bytes_per_token)))
    if card.share_of_ceiling is not None:
        share = f"{card.memory_tb_s:.2f} TB/s, {100 * card.share_of_ceiling:.0f} % of {card.ceiling_tb_s} TB/s ({card.ceiling_source})"
        rows.append(("memory bandwidth", share))
    elif card.device != "cpu" and card.memory_tb_s is not None:
        rows.append(("memory bandwidth", f"{card.memory_tb_s:.3f} TB/s (the ceiling of this GPU is not in minllm/machine/hardware.py)"))
    return rows


def _bytes(count: int) -> str:
    """A number of bytes as text: 15.0 GB, 16.0 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
