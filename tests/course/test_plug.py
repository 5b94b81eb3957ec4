"""A reader's kernel inside the engine: it is called, in the simulator where there is no GPU, and the text is the same."""

import types

import numpy as np
import pytest
from typer.testing import CliRunner

from minllm import LLM, SamplingParams
from minllm.bench.report_card import card_of, lines
from minllm.cli.app import app
from minllm.course import plug
from minllm.course.exercise_files import skeleton, solved
from minllm.course.exercises import EXERCISES, find
from minllm.course.plug import own_kernel
from minllm.errors import ExerciseError, InvalidOptionError, KernelArgumentError
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.normalization.rms_norm import rms_norm
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.own_kernels import OwnKernel, as_own_kernel
from minllm.ops.simulated_stage import SimulatedStageOps
from minllm.sim import tracing
from minllm.weights.formats import plain_linear
from tests.engine.models import model_directory

pytestmark = pytest.mark.results_only

PARAMS = SamplingParams(max_tokens=2, temperature=0.0)
PROMPT = [5, 3]


def generated(params=PARAMS, **options):
    """(tokens, ops) of a tiny model with random weights."""
    with LLM(model_directory("llama3"), device="cpu", **options) as llm:
        return list(llm.generate(PROMPT, params)[0].outputs[0].token_ids), llm.engine.ops


@pytest.fixture(scope="module")
def numpy_tokens():
    return generated()[0]


@pytest.mark.covering("exercise.stage")
@pytest.mark.parametrize(
    "exercise",
    [find(name) for name in ("activation.silu", "normalization.rms_norm", "attention.split_merge", "attention.scores", "matmul.naive")],
    ids=lambda one: one.name,
)
def test_an_exercise_generates_text(exercise, numpy_tokens):
    kernel = own_kernel(exercise.stage, exercise.path, exercise.name)
    tokens, ops = generated(kernel_variants={exercise.stage: kernel})
    assert isinstance(ops, SimulatedStageOps) and ops.launches[exercise.stage] >= 1
    assert tokens == numpy_tokens


def test_every_exercise_with_a_stage_has_a_launcher_for_it(monkeypatch):
    monkeypatch.setattr(plug, "check_file", lambda path, name: types.SimpleNamespace(passed=True))  # test_exercises.py checks them all
    for exercise in EXERCISES:
        if exercise.stage:
            kernel = own_kernel(exercise.stage, exercise.path, exercise.name)
            assert callable(kernel.launch) and (kernel.workspace_shapes is not None) == (exercise.stage == "attention")


def test_the_first_kernel_of_all_runs_where_the_package_would_take_vectors():
    exercise = find("activation.silu")
    kernel = own_kernel(exercise.stage, exercise.path, exercise.name)
    with tracing() as traces:
        kernel.launch(np.ones((2, 64), np.float32), np.empty((2, 32), np.float32))
    assert [trace.kernel for trace in traces] == ["silu_and_multiply_kernel"]


def test_a_kernel_is_simulated_with_small_tiles():
    exercise = find("matmul.tiled")
    given = []

    def my_matmul(x, weight, out, bias=None, stream=None, tile=None):
        given.append(tile)
        out[:] = x @ weight.T

    own = OwnKernel("matmul", my_matmul, simulated_options=exercise.simulated_options)
    ops = SimulatedStageOps(np.float32, {"matmul": own})
    np.testing.assert_array_equal(ops.linear(np.ones((1, 4), np.float32), plain_linear(np.ones((3, 4), np.float32))), np.full((1, 3), 4))
    assert given == [exercise.simulated_options["tile"]]


def attention_of_ones_own(query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, window, longest):
    """A launcher of attention that is no kernel."""
    out[:] = attention_reference(query, key_cache, value_cache, query_start, context_lens, block_tables, scale, window)


def test_a_tree_of_drafts_is_verified_by_numpy_beside_ones_own_attention():
    """A kernel of one's own would let siblings see each other."""
    params = SamplingParams(max_tokens=12, temperature=0.0)
    module = types.SimpleNamespace(attention=attention_of_ones_own, workspace_shapes=lambda *arrays: {})
    drafts = dict(model=str(model_directory("llama3")), num_speculative_tokens=4, speculative_token_tree="[(0,), (1,), (0, 0), (1, 0)]")
    tokens, ops = generated(params, kernel_variants={"attention": module}, speculative_config=drafts | {"draft_sample_method": "greedy"})
    assert tokens == generated(params)[0] and ops.launches["attention"] >= 1


def test_launchers_and_modules_are_kernels_of_ones_own(numpy_tokens):
    calls = []

    def my_rms_norm(*arguments):
        calls.append("rms_norm")
        rms_norm(*arguments)

    def my_attention(*arguments):
        calls.append("attention")
        attention_of_ones_own(*arguments)

    module = types.SimpleNamespace(attention=my_attention, workspace_shapes=lambda *arrays: {})
    tokens, _ = generated(kernel_variants={"rms_norm": my_rms_norm, "attention": module})
    assert tokens == numpy_tokens and calls.count("rms_norm") > calls.count("attention") > 0


def test_kernels_where_a_gpu_would_run_them():
    """CudaOps calls what it is given, and its own where that does not take the call."""
    rows = []

    def my_matmul(x, weight, out, bias=None, stream=None):
        rows.append(len(x))
        out[:] = x @ weight.T

    ops = CudaOps("float32", {"matmul": OwnKernel("matmul", my_matmul, most_rows=2)}, simulated=True)
    for count in (2, 3):
        x, weight = np.ones((count, 4), np.float32), np.ones((3, 4), np.float32)
        np.testing.assert_array_equal(ops.linear(x, plain_linear(weight)), np.full((count, 3), 4))
    assert rows == [2]


def test_what_cannot_be_plugged_in_is_refused(tmp_path):
    with pytest.raises(KernelArgumentError, match="stage 'sample'; it may for accept, attention"):
        as_own_kernel("sample", print)
    with pytest.raises(KernelArgumentError, match="functions attention and workspace_shapes"):
        as_own_kernel("attention", types.SimpleNamespace())
    with pytest.raises(KernelArgumentError, match="for the stage matmul was given for rms_norm"):
        as_own_kernel("rms_norm", OwnKernel("matmul", print))
    with pytest.raises(InvalidOptionError, match="leave names out"):
        LLM(device="cpu", kernel_variants={"rms_norm": rms_norm, "matmul": "tiled"})
    path = tmp_path / "matmul_naive.py"
    path.write_text(skeleton(find("matmul.naive")))
    with pytest.raises(ExerciseError, match="does not pass its check yet"):
        own_kernel("matmul", path)
    with pytest.raises(ExerciseError, match="belongs to the stage matmul, not to attention"):
        own_kernel("attention", path)


def test_the_command_generates_text(tmp_path):
    exercise = find("normalization.rms_norm")
    path = tmp_path / exercise.file_name
    path.write_text(solved(exercise))
    result = CliRunner().invoke(app, ["generate", "def add(", "--device", "cpu", "--variant", f"rms_norm={path}", "--max-tokens", "2"])
    assert result.exit_code == 0 and "runs in the simulator" in result.stderr and result.stdout.strip()


def test_the_report_card_says_which_stage_is_yours():
    """Only a kernel that was launched counts; weights in 4 bits have a stage of their own."""
    exercise = find("matmul.int4")
    kernel = own_kernel(exercise.stage, exercise.path, exercise.name)
    options = dict(device="cpu", dtype="float32", quantization="int4")
    with LLM(**options) as plain, LLM(**options, kernel_variants={"int4_matmul": kernel, "matmul": print}) as llm:
        expected, output = (one.generate(PROMPT, PARAMS)[0] for one in (plain, llm))
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids
        assert ("int4_matmul", "yours") in lines(card_of(llm, output.metrics)) and llm.engine.ops.own_stages == ("int4_matmul",)
        assert "yours" not in dict(lines(card_of(plain, expected.metrics))).values()
    with pytest.raises(InvalidOptionError, match='this model has none: add quantization="int4"'):
        LLM(device="cpu", kernel_variants={"int4_matmul": kernel})


def test_a_sort_by_expert_needs_experts():
    with pytest.raises(InvalidOptionError, match="this model has no experts: take a Qwen2-MoE or Qwen3-MoE"):
        LLM(device="cpu", kernel_variants={"sort_by_expert": print})


def test_a_kernel_of_ones_own_decides_on_drafts():
    """On n-gram drafts and on the greedy ones of a draft model; where none could reach it, it is refused."""
    exercise = find("speculation.accept")
    kernel = own_kernel(exercise.stage, exercise.path, exercise.name)
    params, repeating = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True), [5, 3, 8] * 3
    options = dict(device="cpu", dtype="float32", max_model_len=64)
    with LLM(**options) as plain:
        expected = plain.generate(repeating, params)[0].outputs[0].token_ids
    for config in (
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2},
        {"method": "draft_model", "num_speculative_tokens": 2},
    ):
        with LLM(**options, speculative_config=config, kernel_variants={"accept": kernel}) as llm:
            assert llm.generate(repeating, params)[0].outputs[0].token_ids == expected
            assert llm.engine.ops.launches["accept"] > 0 and llm.engine.ops.own_stages == ("accept",)
    for config, why in ((None, "nothing is drafted"), (dict(num_speculative_tokens=2, synthetic_acceptance_rate=0.5), "chance accepts")):
        with pytest.raises(InvalidOptionError, match=why):
            LLM(device="cpu", speculative_config=config, kernel_variants={"accept": kernel})


def test_an_own_kernel_decides_where_a_gpu_would_run_it():
    """CudaOps calls it with arrays of the device."""

    def all_right(chosen, computed, slots, counts, stream=None):
        counts[:] = 7

    rows = np.zeros(3, np.int32)
    own, package = (CudaOps("float32", variants, simulated=True).accept(rows, rows, rows) for variants in ({"accept": all_right}, None))
    assert own.tolist() == [7, 7, 7] and package.tolist() == [3, 0, 0]
