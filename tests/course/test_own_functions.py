"""A reader's file that calls the package's own solution is refused by name, however it comes by the function."""

import pytest

from minllm.course.checks.doors import check_file
from minllm.course.checks.own_functions import own_places
from minllm.course.exercise_files import skeleton
from minllm.course.exercises import EXERCISES, find
from minllm.kernels.matmul.ladder import naive

MODULE, KERNEL = "minllm.kernels.matmul.ladder.naive", "matmul_naive_kernel"
# Lines at the end of a skeleton's file, which put the package's function in the place of the one that is asked for.
ALIASES = {
    "an import of the name": f"from {MODULE} import {KERNEL}\n",
    "an import under another name": f"from {MODULE} import {KERNEL} as own\n{KERNEL} = own\n",
    "getattr": f"import {MODULE}\n{KERNEL} = getattr({MODULE}, 'matmul_' + 'naive_kernel')\n",
    "importlib": f"import importlib\n{KERNEL} = importlib.import_module('minllm.kernels.matmul.ladder.' + 'naive').{KERNEL}\n",
    "sys.modules": f"import sys\n{KERNEL} = sys.modules['{MODULE}'].{KERNEL}\n",
    "its dictionary": f"import {MODULE} as m\n{KERNEL} = vars(m)['{KERNEL}']\n",
}
# Launchers that the file defines itself, and that call the package's.
CALLS = {
    "its launcher": f"from {MODULE} import matmul_naive as own",
    "its launcher, by importlib": f"import importlib\nown = importlib.import_module('{MODULE}').matmul_naive",
    "its launcher, by the table": "from minllm.kernels.matmul import VARIANTS\nown = lambda *given: VARIANTS['naive'](*given)",
    "another variant": "from minllm.kernels.matmul.ladder.tiled import matmul_tiled as own",
    "the reference": "from minllm.kernels.matmul.reference import matmul_reference\n"
    "def own(x, weight, out, bias=None, *rest, **options):\n    out[...] = matmul_reference(x, weight, bias, out.dtype)",
    "a module that is loaded again": f"import importlib, {MODULE} as m\nown = importlib.reload(m).matmul_naive",
}


def checked(lines, tmp_path):
    """The report on a file of the skeleton and these lines; the package is as before."""
    before = naive.matmul_naive, naive.matmul_naive_kernel
    path = tmp_path / "matmul_naive.py"
    path.write_text(f"{skeleton(find('matmul.naive'))}\n\n{lines}")
    report = check_file(path, "matmul.naive")
    assert before == (naive.matmul_naive, naive.matmul_naive_kernel)
    return report


@pytest.mark.parametrize("lines", ALIASES.values(), ids=ALIASES)
def test_the_packages_kernel_under_the_exercises_name_is_refused(lines, tmp_path):
    report = checked(lines, tmp_path)
    assert not report.passed and f"calls the package's own {KERNEL}" in report.failed.message


@pytest.mark.parametrize("lines", CALLS.values(), ids=CALLS)
def test_a_function_that_calls_the_packages_is_refused(lines, tmp_path):
    report = checked(f"{lines}\ndef matmul_naive(*given, **options):\n    own(*given)\n", tmp_path)
    assert not report.passed and "calls the package's own " in report.failed.message, f"\n{report}"


def test_a_solution_in_a_file_of_its_own_passes(tmp_path):
    """Also one that calls other functions of the package."""
    exercise = find("matmul.naive")
    lines = "    from minllm.kernels.arguments import ceil_div\n    assert ceil_div(5, 4) == 2\n"
    path = tmp_path / exercise.file_name
    path.write_text(exercise.source.replace("def matmul_naive(", "def unused():\n" + lines + "\n\ndef matmul_naive("))
    assert check_file(path).passed


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_what_is_guarded_exists(exercise):
    assert len(own_places(exercise)) >= 1 and all(module.startswith("minllm.") and name for module, name in own_places(exercise))
