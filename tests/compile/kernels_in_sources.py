"""Which kernels the package's sources define, read off their text."""

import ast
from pathlib import Path

import minllm.kernels


def kernel_names(stages):
    """{(module, function name)} of every function under minllm/kernels/STAGE that is decorated with @kernel, nested ones too."""
    root, found = Path(minllm.kernels.__file__).parent, set()
    for path in (path for stage in stages for path in sorted((root / stage).rglob("*.py"))):
        module = ".".join(("minllm", "kernels", *path.relative_to(root).with_suffix("").parts))
        found |= {(module, node.name) for node in ast.walk(ast.parse(path.read_text())) if is_kernel(node)}
    assert found, "no kernel was found: the search is broken"
    return found


def is_kernel(node):
    """Whether a syntax node is a function under @kernel or @kernel(...)."""
    if not isinstance(node, ast.FunctionDef):
        return False
    names = [decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in node.decorator_list]
    return any(isinstance(name, ast.Name) and name.id == "kernel" for name in names)
