"""Train the two models that ship with minllm: a small Llama on Python source code, and a draft model ten times smaller.

The whole recipe, seeded, on one GPU: gather the corpus (the standard library and every installed package under a BSD, MIT,
Apache or PSF licence), hold ten standard library modules out, train a byte-level BPE tokenizer of 4,096 entries, train both
models, and write two Hugging Face directories, the held-out text, and a notice that lists every package with its licence.

    python tools/train_bundled_model.py --out minllm/data

needs PyTorch 2.9 or newer, transformers and tokenizers. The package itself needs none of these: it only reads the result.
The corpus depends on the packages installed on the training machine, so another machine gives another (equally good) model.

Results of 2026-11-20 on one NVIDIA H200 (Python 3.12.3, PyTorch 2.11.0, transformers 5.17.0), with the defaults below, which
are those of the run whose models ship. The held-out text has 204,304 bytes; `xz -9e` needs 1.829 bits per byte.

    model     parameters   steps    time    bits per byte, windows of 1,024 tokens (of 2,048)
    bundled    7,950,400   18,000   663 s   0.784 (0.772)
    draft        868,992    6,000   105 s   1.041 (1.100)

Gathering and tokenising (3.01 M tokens of the library, 113.13 M of 175 packages) took another 62 s. The two models were trained by
two commands, `--only bundled` and `--only draft`, that overlapped near the end; the time of each is its own wall-clock time. The
bundled model was at 0.780 after 16,000 steps, when it had seen the library some fifty times, and its training loss went on falling:
a smaller --library-share is worth a try. The draft model predicts worse, not better, from a context beyond 1,024 tokens.

End a prompt with visible text, as in "def fibonacci(n):". In Python code a line break and the indentation after it (but for its last
space) are one token, so after a prompt that ends with a line break the models expect a line that is not indented.
"""

import argparse
import hashlib
import importlib.metadata
import json
import lzma
import math
import platform
import random
import re
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AttentionInterface, GenerationConfig, LlamaConfig, LlamaForCausalLM

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
NOT_PERMISSIVE = re.compile(r"GPL|MPL|Mozilla|Eclipse|EPL|CeCILL|NVIDIA|LicenseRef|Proprietary|Commercial", re.IGNORECASE)
# A file that names one of these may be under it, whatever the package's licence.
OTHER_TERMS = re.compile(r"GPL|General Public License|Mozilla Public License|LicenseRef|Proprietary|Non-?Commercial", re.IGNORECASE)
# Third-party code bundled in a package has its own licence, so it is left out.
VENDORED_FOLDERS = {"_vendor", "vendor", "vendored", "_vendored", "extern", "externals", "third_party", "_distutils_hack"}
MAX_FILE_CHARACTERS = 400_000
END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 4096
SEED = 0
DEVICE = "cuda"

ARCHITECTURES = {
    "bundled": dict(hidden_size=320, intermediate_size=896, num_hidden_layers=6, num_attention_heads=5),
    "draft": dict(hidden_size=128, intermediate_size=320, num_hidden_layers=2, num_attention_heads=2),
}
# Of 48 completions of function headers, 15 ended in repetition at temperature 0.6 and top_p 0.95 without a penalty; with these, 2.
SAMPLING = dict(do_sample=True, temperature=0.7, top_p=0.95, repetition_penalty=1.05)


def licence_of(distribution):
    """The permissive licence in a distribution's metadata, as one line; None if it states none, or also another."""
    metadata = distribution.metadata
    expression = metadata.get("License-Expression") or ""
    classifiers = ", ".join(c.split(" :: ")[-1] for c in metadata.get_all("Classifier") or [] if c.startswith("License ::"))
    first_line = (metadata.get("License") or "").strip().split("\n")[0][:100]
    statements = [" ".join(statement.replace("|", "/").split()) for statement in (expression, classifiers, first_line)]
    if any(NOT_PERMISSIVE.search(statement) for statement in statements):
        return None
    return next((statement for statement in statements if PERMISSIVE.search(statement)), None)


def read_source(path):
    """The text of a Python file, or None if it is empty, huge or not UTF-8."""
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
    texts, notice, left_out = [], {}, set()
    for distribution in importlib.metadata.distributions():
        name, licence = distribution.metadata["Name"], licence_of(distribution)
        if name in notice:
            continue
        if licence is None:
            left_out.add(name)
            continue
        count = 0
        for file in sorted(distribution.files or [], key=str):
            if file.suffix != ".py" or VENDORED_FOLDERS & set(file.parts) or ".." in file.parts:
                continue
            path = Path(distribution.locate_file(file))
            if (text := read_source(path)) is not None and not OTHER_TERMS.search(text):
                texts.append((path, text))
                count += len(text)
        if count:
            notice[name] = f"| {name} | {distribution.version} | {licence} | {count / 1e6:.2f} |"
    print("left out for their licences:", ", ".join(sorted(left_out)), flush=True)
    return texts, notice


def without_held_out(texts, held_out, seen):
    """Drop copies: files named after a held-out module, files that quote five or more of its long lines, and those in `seen`."""
    telling = {line.strip() for text in held_out.values() for line in text.splitlines() if len(line.strip()) >= 50}
    kept = []
    for path, text in texts:
        digest = hashlib.sha256(text.encode()).digest()
        quotes = len(telling & {line.strip() for line in text.splitlines()})
        if digest in seen or quotes >= 5 or any(module in path.stem for module in HELD_OUT_MODULES):
            continue
        seen.add(digest)
        kept.append(text)
    random.Random(SEED).shuffle(kept)
    return kept


def train_tokenizer(texts):
    """A byte-level BPE of 4,096 entries that puts <|endoftext|> (id 0) before every text, as in the training documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", pair=f"{END_OF_TEXT} $A {END_OF_TEXT} $B", special_tokens=[(END_OF_TEXT, 0)]
    )
    return tokenizer


def encode(tokenizer, texts):
    """One stream of token ids for all texts, encoded 1,000 texts at a time to bound the memory."""
    batches = (tokenizer.encode_batch_fast(texts[start : start + 1000]) for start in range(0, len(texts), 1000))
    return np.concatenate([np.array(encoding.ids, dtype=np.uint16) for batch in batches for encoding in batch])


def gather(work):
    """Corpus and tokenizer; results are kept under `work`, so that a second run starts at the training.

    Returns (tokenizer, held_out, library, packages): the last two are streams of token ids on the GPU.
    """
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "packages.npy").exists():
        start = time.time()
        held_out, texts = standard_library()
        package_texts, notice = permissive_packages()
        seen = set()
        library = without_held_out(texts, held_out, seen)
        packages = without_held_out(package_texts, held_out, seen)
        tokenizer = train_tokenizer(library + packages[::4])
        tokenizer.save(str(work / "tokenizer.json"))
        (work / "held_out.txt").write_text("\n".join(held_out[name] for name in HELD_OUT_MODULES), encoding="utf-8")
        rows = [notice[name] for name in sorted(notice, key=str.lower)]
        header = (
            "The bundled models were trained on the Python standard library "
            f"({platform.python_version()}, {sum(map(len, library)) / 1e6:.2f} million characters, PSF-2.0; "
            f"held out: {', '.join(HELD_OUT_MODULES)}) and on the Python sources of the packages below.\n"
            "The held-out text, held_out.txt, is those ten modules, under the PSF licence.\n\n"
            "| package | version | licence as its metadata states it | million characters |\n|---|---|---|---|\n"
        )
        (work / "NOTICE.md").write_text("# What the bundled models learned from\n\n" + header + "\n".join(rows) + "\n", encoding="utf-8")
        print(f"library: {len(library)} files, {sum(map(len, library)) / 1e6:.1f} M characters; "
              f"{len(rows)} packages: {len(packages)} files, {sum(map(len, packages)) / 1e6:.1f} M characters", flush=True)  # fmt: skip
        np.save(work / "library.npy", encode(tokenizer, library))
        np.save(work / "packages.npy", encode(tokenizer, packages))
        print(f"gathered and tokenised in {time.time() - start:.0f} s", flush=True)
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    held_out = (work / "held_out.txt").read_text(encoding="utf-8")
    library, packages = (torch.from_numpy(np.load(work / f"{name}.npy").astype(np.int32)).to(DEVICE) for name in ("library", "packages"))
    return tokenizer, held_out, library, packages


def bits_per_byte(model, ids, text, window=1024, stride=512):
    """Bits per byte of `text` under `model`, by windows, each token counted once with at least window - stride of context."""
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


def causal_attention(module, query, key, value, attention_mask, scaling=None, **_):
    """Attention of whole windows: no mask tensor, so that PyTorch picks its flash kernel also inside torch.compile."""
    key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))  # [batch, 1 or heads, tokens, head_dim]
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).transpose(1, 2).contiguous(), None


def draw_windows(library, packages, library_share, count, length, generator):
    """`count` windows of length + 1 tokens at random places, `library_share` of them from the standard library."""
    from_library = round(count * library_share)
    pieces = []
    for data, part in ((library, from_library), (packages, count - from_library)):
        first = torch.randint(0, len(data) - length - 1, (part, 1), device=DEVICE, generator=generator)
        pieces.append(data[first + torch.arange(length + 1, device=DEVICE)])
    windows = torch.cat(pieces).long()
    windows[::2, 0] = 0  # every other window begins with <|endoftext|>, so that a prompt may also begin in the middle of a file
    return windows


def train(name, library, packages, held_out_ids, held_out, *, steps, muon_rate, adamw_rate, library_share, tokens_a_step):
    """Train one model: warm-up, then linear decay to zero; the last tenth of the steps on windows of 2,048 tokens instead of 1,024."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, num_key_value_heads=1, head_dim=64, max_position_embeddings=2048, rope_theta=10000.0,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, **ARCHITECTURES[name],
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(DEVICE)
    model.set_attn_implementation("causal")
    print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters, {steps} steps, Muon {muon_rate}, AdamW {adamw_rate}, "
          f"library {library_share}, {tokens_a_step:,} tokens a step", flush=True)  # fmt: skip
    optimizers = optimizers_for(model, muon_rate, adamw_rate)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    peaks = [group["lr"] for group in groups]
    generator = torch.Generator(device=DEVICE).manual_seed(SEED)

    def loss_of(inputs, targets):
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(inputs, use_cache=False).logits
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    compiled = torch.compile(loss_of, dynamic=False)
    start = time.time()
    for step in range(steps):
        length = 1024 if step < 0.9 * steps else 2048
        scale = min(1.0, (step + 1) / 200) * (1 - step / steps)
        for peak, group in zip(peaks, groups, strict=True):
            group["lr"] = peak * scale
        window = draw_windows(library, packages, library_share, tokens_a_step // length, length, generator)
        loss = compiled(window[:, :-1].contiguous(), window[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step + 1 in (20, 120) or (step + 1) % 1000 == 0 or step + 1 == steps:
            training_loss, elapsed = loss.item(), time.time() - start
            measured = bits_per_byte(model, held_out_ids, held_out)
            print(f"  step {step + 1}, {elapsed:.1f} s, loss {training_loss:.3f}, held-out bits a byte {measured:.4f}", flush=True)
    model.set_attn_implementation("sdpa")
    with torch.no_grad():  # round only the weights: model.to(bfloat16) would round the rotary frequencies as well
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    final = bits_per_byte(model, held_out_ids, held_out)
    print(f"{name}: {final:.4f} bits a byte with bf16 weights after {time.time() - start:.0f} s", flush=True)
    return model.eval()


def save(model, tokenizer, directory):
    """Write an ordinary Hugging Face directory: config.json, generation_config.json, model.safetensors, tokenizer.json."""
    model.generation_config = GenerationConfig(**SAMPLING, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT,
                        "clean_up_tokenization_spaces": False, "model_max_length": 2048}  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8")


def show_completions(model, tokenizer):
    """Print a few sampled completions, to look at."""
    prompts = ("def binary_search(items, target):", "def is_prime(n):", "import os\n\ndef read_lines(path):")
    for prompt in prompts:
        ids = torch.tensor([tokenizer.encode(prompt).ids], device=DEVICE)
        torch.manual_seed(SEED)
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=120, pad_token_id=0, **SAMPLING)
        print("-----\n" + tokenizer.decode(output[0].tolist()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where models/, held_out.txt and NOTICE.md go")
    parser.add_argument("--work", type=Path, default=Path("/tmp/minllm-training"), help="keeps the tokenised corpus between runs")
    parser.add_argument("--only", choices=sorted(ARCHITECTURES), help="train just this model")
    parser.add_argument("--steps", type=int, default=18000)
    parser.add_argument("--draft-steps", type=int, default=6000)
    parser.add_argument("--muon-rate", type=float, default=1e-2)
    parser.add_argument("--adamw-rate", type=float, default=1e-2)
    parser.add_argument("--library-share", type=float, default=0.1, help="part of the windows that come from the standard library")
    parser.add_argument("--tokens-a-step", type=int, default=98_304)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    AttentionInterface.register("causal", causal_attention)
    tokenizer, held_out, library, packages = gather(arguments.work)
    held_out_ids = torch.tensor(tokenizer.encode(held_out).ids, device=DEVICE)
    size = len(held_out.encode())
    compressed = len(lzma.compress(held_out.encode(), preset=9 | lzma.PRESET_EXTREME)) * 8 / size
    print(f"{len(library) / 1e6:.2f} M tokens of the library, {len(packages) / 1e6:.2f} M of packages; "
          f"held out: {size:,} bytes, {len(held_out_ids):,} tokens, xz -9e {compressed:.3f} bits a byte", flush=True)  # fmt: skip
    for name in [arguments.only] if arguments.only else sorted(ARCHITECTURES):
        model = train(
            name, library, packages, held_out_ids, held_out, steps=arguments.draft_steps if name == "draft" else arguments.steps,
            muon_rate=arguments.muon_rate, adamw_rate=arguments.adamw_rate, library_share=arguments.library_share,
            tokens_a_step=arguments.tokens_a_step,
        )  # fmt: skip
        show_completions(model, tokenizer)
        save(model, tokenizer, arguments.out / "models" / name)
    for file in ("held_out.txt", "NOTICE.md"):
        (arguments.out / file).write_text((arguments.work / file).read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
