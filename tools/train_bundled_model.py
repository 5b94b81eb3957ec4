"""Train the two models that ship with minllm: a small Llama on Python source code, and a draft model ten times smaller.

The whole recipe, seeded, on one GPU: gather the corpus (the standard library and every installed package under a BSD, MIT,
Apache or PSF licence), hold ten standard library modules out, train a byte-level BPE tokenizer of 4,096 entries, train both
models, and write two Hugging Face directories, the held-out text, and a notice that lists every package with its licence.

    python tools/train_bundled_model.py --out minllm/data

needs PyTorch 2.9 or newer, transformers and tokenizers. The package itself needs none of that: it only reads what this writes.
The text of the corpus is whatever the training machine has installed, so another machine gives another (equally good) model.
"""

import argparse
import hashlib
import importlib.metadata
import json
import lzma
import math
import random
import re
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM

HELD_OUT_MODULES = (
    "heapq",
    "textwrap",
    "bisect",
    "shlex",
    "queue",
    "sched",
    "fractions",
    "configparser",
    "graphlib",
    "calendar",
)
PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|PSF|Python Software Foundation)\b", re.IGNORECASE)
NOT_PERMISSIVE = re.compile(r"GPL|MPL|Mozilla|Eclipse|EPL|CeCILL|NVIDIA|Proprietary|Commercial", re.IGNORECASE)
# Code that a package carries for somebody else has a licence of its own, so it stays out.
VENDORED_FOLDERS = {"_vendor", "vendor", "vendored", "_vendored", "extern", "externals", "third_party", "_distutils_hack"}
MAX_FILE_CHARACTERS = 400_000
END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 4096
SEED = 0

ARCHITECTURES = {
    "bundled": dict(hidden_size=320, intermediate_size=896, num_hidden_layers=6, num_attention_heads=5),
    "draft": dict(hidden_size=128, intermediate_size=320, num_hidden_layers=2, num_attention_heads=2),
}


def licence_of(distribution):
    """The licence that a distribution's metadata states, as one line: expression, else classifiers, else the first line of License."""
    metadata = distribution.metadata
    expression = metadata.get("License-Expression")
    classifiers = [c.split(" :: ")[-1] for c in metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    first_line = (metadata.get("License") or "").strip().split("\n")[0][:100]
    return expression or ", ".join(classifiers) or first_line


def read_source(path):
    """The text of a Python file, or None where it is empty, huge or not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if text.strip() and len(text) <= MAX_FILE_CHARACTERS else None


def standard_library():
    """(held_out, texts): the ten held-out modules by name, and every other file of the standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    held_out, texts = {}, []
    for path in sorted(root.rglob("*.py")):
        if {"site-packages", "dist-packages", "lib2to3", "bad_coding"} & set(path.parts):
            continue
        if (text := read_source(path)) is None:
            continue
        if path.parent == root and path.stem in HELD_OUT_MODULES:
            held_out[path.stem] = text
        else:
            texts.append((path, text))
    return held_out, texts


def permissive_packages():
    """(texts, notice): the sources of every installed package under a permissive licence, and a line of the notice for each."""
    texts, notice = [], {}
    for distribution in importlib.metadata.distributions():
        name, licence = distribution.metadata["Name"], licence_of(distribution)
        if not PERMISSIVE.search(licence) or NOT_PERMISSIVE.search(licence) or name in notice:
            continue
        count = 0
        for file in sorted(distribution.files or [], key=str):
            if file.suffix != ".py" or VENDORED_FOLDERS & set(file.parts) or ".." in file.parts:
                continue
            path = Path(distribution.locate_file(file))
            if (text := read_source(path)) is not None:
                texts.append((path, text))
                count += len(text)
        if count:
            notice[name] = f"| {name} | {distribution.version} | {licence} | {count / 1e6:.2f} |"
    return texts, notice


def without_held_out(texts, held_out):
    """Drop copies: files named after a held-out module, files that quote five or more of its long lines, and exact duplicates."""
    telling = {line.strip() for text in held_out.values() for line in text.splitlines() if len(line.strip()) >= 50}
    seen, kept = set(), []
    for path, text in texts:
        digest = hashlib.sha256(text.encode()).digest()
        quotes = len(telling & {line.strip() for line in text.splitlines()})
        if digest in seen or quotes >= 5 or any(module in path.stem for module in HELD_OUT_MODULES):
            continue
        seen.add(digest)
        kept.append(text)
    return kept


def train_tokenizer(texts):
    """A byte-level BPE of 4,096 entries that puts <|endoftext|> (id 0) before every text, as each training document had it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", pair=f"{END_OF_TEXT} $A {END_OF_TEXT} $B", special_tokens=[(END_OF_TEXT, 0)]
    )
    return tokenizer


def gather(work):
    """Corpus, tokenizer and token stream; what was made is kept under `work`, so that a second run starts at the training."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "tokens.npy").exists():
        held_out, texts = standard_library()
        packages, notice = permissive_packages()
        library_characters = sum(len(text) for _, text in texts)
        kept = without_held_out(texts + packages, held_out)
        random.Random(SEED).shuffle(kept)
        tokenizer = train_tokenizer(kept[::4])
        tokens = np.concatenate([np.array(e.ids, dtype=np.uint16) for e in tokenizer.encode_batch(kept)])
        tokenizer.save(str(work / "tokenizer.json"))
        (work / "held_out.txt").write_text("\n".join(held_out[name] for name in HELD_OUT_MODULES), encoding="utf-8")
        rows = [notice[name] for name in sorted(notice, key=str.lower)]
        header = (
            "The bundled models were trained on the Python standard library "
            f"({sysconfig.get_python_version()}, {library_characters / 1e6:.2f} million characters, PSF-2.0; "
            f"held out: {', '.join(HELD_OUT_MODULES)}) and on the Python sources of the packages below.\n"
            "The held-out text, held_out.txt, is those ten modules, under the PSF licence.\n\n"
            "| package | version | licence as its metadata states it | million characters |\n|---|---|---|---|\n"
        )
        (work / "NOTICE.md").write_text("# What the bundled models learned from\n\n" + header + "\n".join(rows) + "\n")
        print(f"corpus: {len(kept)} files, {sum(map(len, kept)) / 1e6:.0f} M characters, {len(tokens) / 1e6:.1f} M tokens", flush=True)
        np.save(work / "tokens.npy", tokens)
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    held_out = (work / "held_out.txt").read_text(encoding="utf-8")
    return tokenizer, held_out, torch.from_numpy(np.load(work / "tokens.npy").astype(np.int32)).cuda()


def bits_per_byte(model, ids, text, window=1024, stride=512):
    """Bits a byte of `text` under `model`, a window at a time, each token counted once with at least window - stride of context."""
    nats = 0.0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, stride):
            piece = ids[start : start + window + 1][None]
            logits = model(piece[:, :-1], use_cache=False).logits.float()
            losses = F.cross_entropy(logits[0], piece[0, 1:], reduction="none")
            nats += losses[0 if start == 0 else window - stride :].sum().item()
            if start + window + 1 >= len(ids):
                break
    return nats / math.log(2) / len(text.encode())


def optimizers_for(model, muon_rate, adamw_rate):
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=muon_rate, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=adamw_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True),
    ]


def train(name, data, held_out_ids, held_out, *, steps, muon_rate, adamw_rate, tokens_a_step=98_304):
    """Train one model: warm-up, then linear decay to zero; the last tenth of the steps on windows of 2,048 tokens instead of 1,024."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, num_key_value_heads=1, head_dim=64, max_position_embeddings=2048, rope_theta=10000.0,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, **ARCHITECTURES[name],
    )  # fmt: skip
    model = LlamaForCausalLM(config).cuda()
    print(f"{name}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {steps} steps", flush=True)
    optimizers = optimizers_for(model, muon_rate, adamw_rate)
    peaks = [group["lr"] for o in optimizers for group in o.param_groups]
    generator = torch.Generator(device="cuda").manual_seed(SEED)

    def loss_of(inputs, targets):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(inputs, use_cache=False).logits
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    compiled = torch.compile(loss_of, dynamic=False)
    start = time.time()
    for step in range(steps):
        length = 1024 if step < 0.9 * steps else 2048
        scale = min(1.0, (step + 1) / 200) * (1 - step / steps)
        for peak, group in zip(peaks, (g for o in optimizers for g in o.param_groups)):
            group["lr"] = peak * scale
        first = torch.randint(0, len(data) - length - 1, (tokens_a_step // length, 1), device="cuda", generator=generator)
        window = data[first + torch.arange(length + 1, device="cuda")].long()
        loss = compiled(window[:, :-1].contiguous(), window[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step + 1 in (20, 100) or (step + 1) % 500 == 0:
            measured = bits_per_byte(model, held_out_ids, held_out)
            print(f"  step {step + 1}, {time.time() - start:.0f} s, loss {loss.item():.3f}, held-out bits a byte {measured:.4f}", flush=True)
    model = model.to(torch.bfloat16).eval()
    final = bits_per_byte(model, held_out_ids, held_out)
    print(f"{name}: {final:.4f} bits a byte in bf16 after {time.time() - start:.0f} s", flush=True)
    return model, final


def save(model, tokenizer, directory):
    """Write an ordinary Hugging Face directory: config.json, generation_config.json, model.safetensors, tokenizer.json."""
    generation = model.generation_config
    generation.update(do_sample=True, temperature=0.6, top_p=0.95, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT,
                        "model_max_length": 2048}  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")


def show_completions(model, tokenizer):
    """Print a few sampled completions, to look at."""
    prompts = ("def binary_search(items, target):\n", "class Stack:\n    def ", "import os\n\ndef read_lines(path):\n")
    for prompt in prompts:
        ids = torch.tensor([tokenizer.encode(prompt).ids]).cuda()
        torch.manual_seed(SEED)
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=120, do_sample=True, temperature=0.6, top_p=0.95)
        print("-----\n" + tokenizer.decode(output[0].tolist()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where models/, held_out.txt and NOTICE.md go")
    parser.add_argument("--work", type=Path, default=Path("/tmp/minllm-training"), help="keeps the tokenised corpus between runs")
    parser.add_argument("--only", choices=sorted(ARCHITECTURES), help="train just this model")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--draft-steps", type=int, default=6000)
    parser.add_argument("--muon-rate", type=float, default=3e-3)
    parser.add_argument("--adamw-rate", type=float, default=3e-3)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    tokenizer, held_out, data = gather(arguments.work)
    held_out_ids = torch.tensor(tokenizer.encode(held_out).ids).cuda()
    compressed = len(lzma.compress(held_out.encode(), preset=9 | lzma.PRESET_EXTREME)) * 8 / len(held_out.encode())
    print(f"{len(data) / 1e6:.1f} M tokens; held out {len(held_out.encode())} bytes, xz -9e {compressed:.3f} bits a byte", flush=True)
    for name in [arguments.only] if arguments.only else sorted(ARCHITECTURES):
        steps = arguments.draft_steps if name == "draft" else arguments.steps
        model, _ = train(name, data, held_out_ids, held_out, steps=steps, muon_rate=arguments.muon_rate, adamw_rate=arguments.adamw_rate)
        save(model, tokenizer, arguments.out / "models" / name)
        show_completions(model, tokenizer)
    for file in ("held_out.txt", "NOTICE.md"):
        (arguments.out / file).write_text((arguments.work / file).read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
