#!/usr/bin/env bash
# transformers 5.24.0: a chat template named "file" replaces the default one when a tokenizer is saved and loaded again.
#
# A tokenizer may have several chat templates by name. save_pretrained writes the one named "default" to chat_template.jinja and each other
# to additional_chat_templates/NAME.jinja, and from_pretrained reads them back. One would expect the same dictionary after both.
#
# Seen: {'default': 'the default', 'file': 'for files', 'rag': 'for documents'} comes back as {'default': 'for files', 'rag': 'for
# documents'}, without a warning: from_pretrained keeps the path of NAME's file under the key chat_template_NAME, and chat_template_file is
# its key for chat_template.jinja. Exits with an error if the output changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check transformers==5.24.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' | tee output
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
tokenizer.chat_template = {"default": "the default", "file": "for files", "rag": "for documents"}
tokenizer.save_pretrained("saved")
print(PreTrainedTokenizerFast.from_pretrained("saved").chat_template)
PYTHON
grep -qxF "{'default': 'for files', 'rag': 'for documents'}" output
