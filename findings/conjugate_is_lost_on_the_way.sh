#!/usr/bin/env bash
# torch 2.13.0 on the CPU and safetensors 0.8.0, the conjugate of a complex tensor, such as the inverse rotation of RoPE.
#
# Input: rotation = torch.polar(ones, angles), rotation.conj(), and its imaginary part, all of which print as they should.
# Expected: the conjugate arrives wherever the tensor goes: conj() only sets a flag, but torch.save, pickle and clone keep or apply it, and
# numpy() asks for resolve_conj() or resolve_neg() first.
# Seen: a DataLoader with num_workers=1 gives the rotation itself, and with num_workers=0 its conjugate: torch.multiprocessing's pickler
# forgets the flag. safetensors saves the numbers without it. np.from_dlpack refuses a conjugate, and reads its imaginary part with the
# opposite sign. There is no message in any of these cases.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 safetensors==0.8.0 numpy==2.4.6
cat > "$folder/conjugate.py" <<'PYTHON'
import pickle

import numpy as np
import torch
from safetensors.torch import load, save
from torch.utils.data import DataLoader

rotation = torch.polar(torch.ones(3), torch.tensor([0.25, 0.5, 1.0]))
inverse = rotation.conj()
sines = inverse.imag


def loaded(tensor, workers):
    return next(iter(DataLoader([tensor], batch_size=None, num_workers=workers)))


if __name__ == "__main__":
    found = {
        "pickle": pickle.loads(pickle.dumps(inverse)),
        "no worker": loaded(inverse, 0),
        "one worker": loaded(inverse, 1),
        "safetensors": load(save({"inverse": inverse}))["inverse"],
        "imaginary part, no worker": loaded(sines, 0),
        "imaginary part, one worker": loaded(sines, 1),
        "imaginary part, np.from_dlpack": torch.tensor(np.from_dlpack(sines)),
    }
    print("inverse:", inverse.tolist())
    for way, tensor in found.items():
        expected = sines if "imaginary" in way else inverse
        print(f"{way}:", tensor.tolist())
        assert torch.equal(tensor, expected) == (way == "pickle" or "no worker" in way)
        assert torch.equal(tensor.abs(), expected.abs())
    for refused in (lambda: np.from_dlpack(inverse), lambda: sines.numpy()):
        try:
            refused()
        except (BufferError, RuntimeError) as error:
            print("refused:", str(error).split(".")[0])
        else:
            raise AssertionError
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/conjugate.py"
