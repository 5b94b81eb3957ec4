"""What runs without the names, modules and defaults that Windows lacks; windows_like/sitecustomize.py hides them from this project.

Windows itself is not at hand. These tests find a missing name, module or start method, and text files opened without an encoding.
"""

import ast
import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "windows_like"
GUARDED = {  # names that Windows lacks and our code uses, each after asking whether it is there
    "minllm/course/fork.py": {"SIGKILL", "fork"},
    "minllm/machine/host.py": {"sched_getaffinity"},
    "minllm/parallel/file_descriptors.py": {"AF_UNIX", "geteuid"},
    "minllm/runtime/host_pages.py": {"MAP_PRIVATE", "MAP_ANONYMOUS", "MADV_DONTNEED"},
}
UNIX_TOOLS = {"tools/run_numba_tests.py": {"setitimer"}, "tools/fail_ranks.py": {"SIGKILL", "SIGSTOP"}}
LOOKED_AT = re.compile(r"\b((os|signal|mmap|socket)\.|(open|read_text|write_text)\()")  # in all files that the tests below judge
IMPORT_EVERYTHING = """
import importlib, os, pkgutil, signal, sys
import minllm

assert os.name == "nt" and sys.platform == "win32" and not hasattr(os, "fork") and not hasattr(signal, "SIGKILL")
for module in pkgutil.walk_packages(minllm.__path__, "minllm."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
ENGINE = """
from minllm import LLM, SamplingParams
from minllm.errors import DeviceError, InvalidOptionError

params = SamplingParams(temperature=0, max_tokens=4)
options = dict(device="cpu", max_model_len=64, kv_cache_memory_bytes=1 << 20)
for option in ({}, {"kv_cache_policy": "contiguous"}, {"quantization": "int8"}, {"speculative_config": {"num_speculative_tokens": 2}}):
    with LLM(**options, **option) as llm:
        assert len(llm.generate([1, 2, 3], params)[0].outputs[0].token_ids) == 4
for option, error in (({"kv_cache_policy": "virtual"}, DeviceError), ({"pipeline_parallel_size": 2}, InvalidOptionError)):
    try:
        LLM(**options, **option)
    except error as refused:
        assert "this system" in str(refused), refused
    else:
        raise AssertionError(option)
"""


def run(*arguments, stdin=""):
    """The output of a run that sees what Windows has, which must succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": os.pathsep.join((str(FOLDER), str(ROOT))), "PYTHONWARNDEFAULTENCODING": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def view():
    """The names that are hidden, from the source of sitecustomize.py, which is not imported here."""
    tree = ast.parse((FOLDER / "sitecustomize.py").read_text(encoding="utf-8"))
    [names] = (node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NAMES")
    return {word for node in ast.walk(names) if isinstance(node, ast.Constant) for word in node.value.split()}


@functools.cache
def nodes():
    """(path from the root, node) of everything in our source files that a test below looks at."""
    paths = sorted((*ROOT.glob("minllm/**/*.py"), *ROOT.glob("tools/**/*.py"), *ROOT.glob("lessons/*.py")))
    texts = ((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths)
    trees = ((path, ast.parse(text)) for path, text in texts if LOOKED_AT.search(text))
    return [(path, node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Call)]


def test_names_that_windows_lacks_are_used_only_where_they_were_asked_for(view):
    found = {}
    for path, node in nodes():
        if getattr(node, "attr", "") in view and ast.unparse(node.value) in ("os", "signal", "mmap", "socket"):
            found.setdefault(path, set()).add(node.attr)
    assert found == GUARDED | UNIX_TOOLS


def test_every_text_file_is_opened_with_an_encoding():
    missing = []
    for path, node in nodes():
        if isinstance(node, ast.Call) and not any(word.arg in ("encoding", None) for word in node.keywords):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            by_path = isinstance(node.func, ast.Attribute) and name == "write_text" or name == "read_text" and not node.args
            if by_path or isinstance(node.func, ast.Name) and name == "open" and "b" not in mode_of(node):
                missing.append(f"{path}:{node.lineno}")
    assert not missing


def mode_of(call):
    """The mode of a call of open(); "b" if the name is a function of ours that takes something else."""
    modes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
    if not modes:
        return "r"
    return modes[0].value if isinstance(modes[0], ast.Constant) and isinstance(modes[0].value, str) else "b"


def test_every_module_is_imported(request):
    if not request.config.option.exhaustive:
        pytest.skip("eight seconds of imports: only with --exhaustive")
    run("-c", IMPORT_EVERYTHING)


def test_the_demo_and_the_check_of_an_exercise():
    assert run("-m", "minllm", "generate", "-", "--echo", "--max-tokens", "4", stdin="class Point:\n").startswith("class Point:")
    solution = Path(importlib.util.find_spec("minllm.kernels.activation.silu").origin)
    assert "Passed: " in run("-m", "minllm", "check", "activation.silu", str(solution))


def test_engines_run_or_say_that_this_system_cannot():
    run("-c", ENGINE)
