"""The weights of a model directory, one safetensors file or shards with an index, as one table of tensors."""

from pathlib import Path

import numpy as np

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.finite import all_finite
from minllm.models.json_files import read_json
from minllm.models.safetensors_file import NUMPY_DTYPES, TAKE_ANOTHER, SafetensorsFile
from minllm.weights.stored import TensorEntry

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_PATTERNS = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "consolidated*.bin")


class Checkpoint:
    """All tensors of a model directory.

    The constructor reads and checks every header; `tensor` and `array` read values.
    """

    described_by = "config.json"

    def __init__(self, directory: Path | str, allow_nonfinite_weights: bool = False):
        """Raises CheckpointError if the directory, a file or a shard is missing or damaged, or holds pickles only.

        allow_nonfinite_weights: return tensors that hold NaN or infinity instead of refusing them.
        """
        self.directory = Path(directory)
        self.allow_nonfinite_weights = allow_nonfinite_weights
        if not self.directory.is_dir():
            raise CheckpointError(f"{self.directory} is not a directory; give the path of a Hugging Face model directory.")
        if (self.directory / SINGLE_FILE).exists():
            file = SafetensorsFile(self.directory / SINGLE_FILE)
            self._file_of = dict.fromkeys(file.entries, file)
        elif (self.directory / INDEX_FILE).exists():
            self._file_of = _open_shards(self.directory)
        else:
            raise _no_weights(self.directory)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._file_of)

    def stored_name(self, name: str) -> str:
        """The name itself: the files use Hugging Face's names."""
        return name

    def entry(self, name: str) -> TensorEntry:
        """Dtype, shape and bytes of a tensor, from the header."""
        return self._file_of[name].entries[name]

    def tensor(self, name: str) -> np.ndarray:
        """The values of a floating-point tensor, a read-only view of the mapped file.

        Raises CheckpointError for NaN or infinity.
        """
        values = self._file_of[name].tensor(name)
        if not self.allow_nonfinite_weights and not all_finite(values):
            raise CheckpointError(
                f"{self.directory}: tensor {name!r} holds NaN or infinity, which spread to the results; the file is damaged, copy it "
                "again, or load it all the same with allow_nonfinite_weights=True."
            )
        return values

    def array(self, name: str) -> np.ndarray:
        """The values of any tensor, codes included, as a view of the mapped file; not checked for NaN."""
        return self._file_of[name].array(name)

    def dtype(self, quantized: bool = False) -> np.dtype:
        """The dtype to compute in: the floating-point dtype of most of the stored bytes, but float32 for float64.

        quantized: ignores tensors of codes and counts only the others (scales, norms, embeddings). Raises UnsupportedModelError if most
        bytes have another dtype.
        """
        stored: dict[str, int] = {}
        for name in self._file_of:
            entry = self.entry(name)
            if not quantized or entry.dtype in NUMPY_DTYPES:
                stored[entry.dtype] = stored.get(entry.dtype, 0) + entry.end - entry.begin
        most = max(stored, key=stored.__getitem__, default="nothing")
        if most not in NUMPY_DTYPES:
            raise UnsupportedModelError(
                f"The weights of {self.directory} are stored as {most}; minllm reads {', '.join(NUMPY_DTYPES)}: {TAKE_ANOTHER}."
            )
        return NUMPY_DTYPES["F32" if most == "F64" else most]


def _open_shards(directory: Path) -> dict[str, SafetensorsFile]:
    """{tensor name: its shard}, by the index.

    Raises CheckpointError if a shard does not hold exactly the tensors that the index lists.
    """
    weight_map = read_json(directory / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{directory / INDEX_FILE} must hold a weight_map from tensor names to file names.")
    shards: dict[str, SafetensorsFile] = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard or not shard.endswith(".safetensors") or not shard.isprintable():
            raise CheckpointError(f"{INDEX_FILE} of {directory} names the shard {shard!r}; shards are .safetensors files beside it.")
        shards[shard] = SafetensorsFile(directory / shard)
    for name, shard in weight_map.items():
        if name not in shards[shard].entries:
            raise CheckpointError(f"{INDEX_FILE} of {directory} puts tensor {name!r} in {shard}, which lacks it; copy both again.")
    for shard, file in shards.items():
        for name in file.entries:
            if weight_map.get(name) != shard:
                raise CheckpointError(f"{shard} of {directory} holds tensor {name!r}, which {INDEX_FILE} does not list; copy both again.")
    return {name: shards[shard] for name, shard in weight_map.items()}


def _no_weights(directory: Path) -> CheckpointError:
    pickles = sorted(path.name for pattern in PICKLE_PATTERNS for path in directory.glob(pattern))
    if pickles:
        return CheckpointError(
            f"{directory} holds its weights as a pickle only ({pickles[0]}), which can run any code when read, so minllm reads none. "
            "Convert it with transformers: AutoModelForCausalLM.from_pretrained(PATH).save_pretrained(NEW_PATH)."
        )
    return CheckpointError(f"{directory} holds no weights: neither {SINGLE_FILE} nor {INDEX_FILE}. Copy them from the model's source.")
