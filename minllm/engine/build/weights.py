"""The weights of an engine: where they are stored, and the format of the layers' matrices."""

from pathlib import Path

from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError
from minllm.models.config import ModelConfig
from minllm.models.gguf.gguf_model import GgufModel
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.source import ModelSource, bundled_model, open_source
from minllm.models.tied_head import untied_if_stored
from minllm.weights.format import WeightFormat
from minllm.weights.formats import WEIGHT_FORMATS, quantizations
from minllm.weights.stored import StoredWeights


def model_source(options: EngineOptions) -> ModelSource:
    """The model's directory or file. Raises CheckpointError if it is neither."""
    return open_source(bundled_model() if options.model is None else Path(options.model))


def open_model(source: ModelSource, options: EngineOptions) -> tuple[ModelConfig, StoredWeights]:
    """The configuration, and the weights, which are not read yet."""
    config = source.config()
    if options.load_format == "dummy":
        return config, RandomCheckpoint(config, options.seed)
    checkpoint = source.checkpoint(config, options.allow_nonfinite_weights)
    return untied_if_stored(config, checkpoint), checkpoint


def chosen_format(
    device: str, options: EngineOptions, source: ModelSource, config: ModelConfig, checkpoint: StoredWeights
) -> WeightFormat | None:
    """The format of the layers' matrices; None leaves them as they are.

    On a CPU a GGUF file is dequantised while it loads, because NumPy multiplies floats. Raises InvalidOptionError if no GPU
    kernels multiply by the format, or if an option contradicts the file's format.
    """
    stored = source.weight_format(config, checkpoint)
    if stored is not None and (options.quantization is not None or options.load_format == "dummy"):
        option = f"quantization={options.quantization!r}" if options.quantization is not None else 'load_format="dummy"'
        raise InvalidOptionError(f"{source.path} is stored quantised ({stored.name}), which {option} contradicts: leave the option out.")
    weight_format = None if options.quantization is None else WEIGHT_FORMATS[options.quantization]
    if stored is not None and not (device == "cpu" and isinstance(source, GgufModel)):
        weight_format = stored
    if weight_format is not None and config.num_experts and (stored is not None or not weight_format.has_experts):
        known = ", ".join(name for name in quantizations() if WEIGHT_FORMATS[name].has_experts)
        raise InvalidOptionError(
            f"{source.path} has experts, which minllm multiplies as they are or quantised while loading, as one of {known}, not in "
            f"{weight_format.name}: take a checkpoint that is not quantised, and one of these or quantization=None."
        )
    if weight_format is not None and device != "cpu":
        _check_capability(weight_format)
        if options.batch_invariant:
            raise InvalidOptionError(
                f"batch_invariant=True has no kernels for weights in {weight_format.name} on a GPU, only for plain ones: "
                'take a checkpoint that is not quantised, or device="cpu".'
            )
    return weight_format


def check_expert_widths(device: str, part: ModelConfig, weight_format: WeightFormat | None) -> None:
    """Raises InvalidOptionError unless rows of quantised experts are whole 16-byte loads of codes. part: the model, or a rank's part."""
    if device == "cpu" or not part.num_experts or weight_format is None:
        return
    each = int(16 / weight_format.matrix_itemsize)
    for name, width in (("hidden size", part.hidden_size), ("inner width", part.intermediate_size)):
        if width % each:
            raise InvalidOptionError(
                f"Experts in {weight_format.name} have rows of a multiple of {each} numbers, and here the {name} (on each rank) is "
                f"{width}: take quantization=None, or other ranks."
            )


def _check_capability(weight_format: WeightFormat) -> None:
    """Raises InvalidOptionError if the GPU lacks the format's instructions."""
    from minllm.runtime.device import current_device

    found, since = current_device().compute_capability, weight_format.since
    if since is not None and found < since:
        is_option = weight_format.is_option
        what = f"quantization={weight_format.name!r}" if is_option else f"A checkpoint that is stored quantised ({weight_format.name})"
        instead = "quantization='int8'" if is_option else "a checkpoint in int8 or 16 bits"
        raise InvalidOptionError(
            f"{what} needs a GPU of compute capability {since[0]}.{since[1]} or more, and this one has {found[0]}.{found[1]}: "
            f"take {instead}, or device='cpu'."
        )
