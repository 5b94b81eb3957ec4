#!/usr/bin/env bash
# aiperf 0.13.0 with transformers 5.24.0, on CPython 3.
#
# Input: a folder with a tokenizer, given by its path, as `aiperf profile --tokenizer FOLDER` does; once with HF_HUB_OFFLINE=1.
# Expected: offline mode only forbids the network. A path on this machine needs none, so it is loaded both times, as transformers itself does.
# Seen: with HF_HUB_OFFLINE=1 the path is taken for the name of a repository in the hub's cache and refused ("Repo id must be in the form
# 'repo_name' or 'namespace/repo_name'"), so a benchmark on a machine without network has to leave the variable unset.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check aiperf==0.13.0 transformers==5.24.0
cat > "$folder/make.py" <<'PYTHON'
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
tokenizer.train_from_iterator(["a b c"], trainers.BpeTrainer(vocab_size=300, show_progress=False))
PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(sys.argv[1])
PYTHON
cat > "$folder/load.py" <<'PYTHON'
import sys

from aiperf.common.tokenizer import Tokenizer
from transformers import AutoTokenizer

print("transformers:", type(AutoTokenizer.from_pretrained(sys.argv[1])).__name__)
try:
    Tokenizer.from_pretrained(sys.argv[1], resolve_alias=True)
    print("aiperf: loaded")
except Exception as error:
    print("aiperf:", str(error)[:200])
PYTHON
"$folder/venv/bin/python" "$folder/make.py" "$folder/tokenizer"
online=$("$folder/venv/bin/python" "$folder/load.py" "$folder/tokenizer")
offline=$(HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/load.py" "$folder/tokenizer")
printf 'without the variable:\n%s\nHF_HUB_OFFLINE=1:\n%s\n' "$online" "$offline"
grep -q "aiperf: loaded" <<< "$online"
grep -q "transformers: " <<< "$offline"
grep -q "Repo id must be in the form" <<< "$offline"
