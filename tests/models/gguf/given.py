"""GGUF files that a variable of the environment names, and their numbers as the gguf package dequantises them."""

import hashlib
import os
from pathlib import Path

import gguf
import torch


def given_file(variable, sha256):
    """The file that the variable names, which has to be the one with this hash."""
    path = Path(os.environ[variable]).resolve()
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == sha256, f"{path} is another file than the one that this test is about"
    return path


class Dequantised:
    """The tensors of a GGUF file by name, float32, each dequantised when it is read."""

    def __init__(self, path):
        self.tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}

    def __contains__(self, name):
        return name in self.tensors

    def __getitem__(self, name):
        return torch.tensor(gguf.quants.dequantize(self.tensors[name].data, self.tensors[name].tensor_type))
