#!/usr/bin/env bash
# tokenizers 0.23.3, Tokenizer.encode(text) in a thread, CPython 3.
#
# Input: a byte-level BPE tokenizer and a text of 3.9 million characters, encoded in a second thread while the main thread counts.
# Expected: the library, written in Rust, releases the GIL while it encodes, so that the main thread counts on.
# Seen: encode(text) holds the GIL for the whole call: the main thread gets about no CPU time of its own until the text is encoded, whatever
# its length. encode_batch([text]) of the same one text releases it: both threads run side by side.
# A server that encodes prompts in a thread pool with encode() therefore stops its event loop for the length of the longest prompt.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
import threading
import time

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
words = ["def function(argument):\n    return argument + 1\n"]
tokenizer.train_from_iterator(words, trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
text = words[0] * 80_000


def share_of_main(encode):
    """CPU time of the main thread, which only counts, while another thread encodes, over that thread's."""
    spent = []

    def work():
        start = time.thread_time()
        encode()
        spent.append(time.thread_time() - start)

    thread, start = threading.Thread(target=work), time.thread_time()
    thread.start()
    while thread.is_alive():
        pass
    return (time.thread_time() - start) / spent[0]


one, batch = share_of_main(lambda: tokenizer.encode(text)), share_of_main(lambda: tokenizer.encode_batch([text]))
print(f"main thread's CPU time per CPU second of encoding: encode {one:.3f} s, encode_batch {batch:.3f} s")
assert one < 0.1 < 0.3 < batch
PYTHON
