"""`minllm inspect` as a user meets it: without a GPU, with and without the tools that it needs."""

import json

import pytest
from typer.testing import CliRunner

from minllm.catalogue import machine_code
from minllm.cli import app as cli
from minllm.cli import inspection, inspection_report
from minllm.errors import InvalidOptionError
from minllm.machine.devices import missing_compilers
from minllm.runtime import compiler, listing

KERNEL = "activation/silu/vectors/bfloat16"
needs_compilers = pytest.mark.skipif(bool(missing_compilers()), reason="the CUDA toolkit's compiler libraries are not installed")


def run(*arguments):
    """Invoke `minllm inspect` in this process."""
    return CliRunner().invoke(cli.app, ["inspect", *arguments])


def test_without_a_name_all_kernels_are_listed_and_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(compiler, "compile_kernel", lambda *_, **__: pytest.fail("compiled"))
    result = run()
    assert result.exit_code == 0
    for name in machine_code():
        assert name in result.stdout
    assert "minllm/kernels/matmul/gemv/gemv.py:" in result.stdout


def test_the_list_grows_while_kernels_are_made(monkeypatch, capsys):
    """Making all takes seconds: the first line does not wait for the last kernel."""
    [name, *_] = [code.name for code in inspection.find_kernels("silu/vectors")]
    entry = inspection_report.list_entry
    monkeypatch.setattr(inspection_report, "list_entry", lambda code: {**entry(code), "shown before": capsys.readouterr().out})
    _, second, *_ = inspection_report.print_list(inspection_report.console(None), inspection.find_kernels("silu/vectors"))
    assert name in second["shown before"] and "silu.py:" in second["shown before"]


@needs_compilers
def test_one_kernel_is_shown_with_its_registers_occupancy_and_instructions():
    result = run(KERNEL)
    assert result.exit_code == 0, result.output
    for words in ("silu.py:", "sm_90a", "64 threads", "registers  ", "spills     0 bytes", "24 blocks, 48 warps", "75%", "LDG.E.128"):
        assert words in result.stdout
    assert "float64    none" in result.stdout and "not as designed" not in result.stdout


@needs_compilers
def test_json_holds_what_the_text_says_and_nothing_else_is_on_standard_output():
    result = run(KERNEL, "--cc", "8.9", "--ptx", "--sass", "--json", "-")
    facts = json.loads(result.stdout)
    assert facts["target"] == "sm_89" and facts["threads"] == 64 and facts["spill_bytes"] == 0
    assert facts["occupancy"]["blocks"] == 24 and facts["occupancy"]["share"] == 1.0 and "warps" in facts["occupancy"]["limited_by"]
    assert any(opcode.startswith("LDG.E.128") for opcode in facts["instructions"])
    for language, instruction in (("ptx", "ld.global.v4"), ("sass", "LDG.E.128")):
        places = {piece["place"] for piece in facts[language] if any(instruction in text for text in piece["instructions"])}
        assert places and all(place.startswith("minllm/kernels/activation/silu.py:") for place in places)


@needs_compilers
def test_several_kernels_make_a_table(tmp_path, request):
    file = tmp_path / "facts.json"
    prefix = "activation/silu" if request.config.option.exhaustive else "activation/silu/vectors/"  # 30 kernels or 3
    result = run(prefix, "--json", str(file))
    names = [name for name in machine_code() if name.startswith(prefix)]
    assert [facts["name"] for facts in json.loads(file.read_text())] == names
    assert all(name in result.stdout for name in names)


@needs_compilers
@pytest.mark.covering("capability", "name")
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
@pytest.mark.parametrize("name", ["activation/silu/vectors/float32", "activation/silu/vectors/bfloat16"])
def test_line_numbers_do_not_change_the_code(name, capability):
    """The listing is of the code that runs: its pieces hold all of it, and nothing else."""
    code = machine_code()[name]
    with_lines, ptx = compiler.compile_listing(code.kernel.function, code.arguments, capability, **code.kernel.options)
    pieces = listing.sass_pieces(with_lines.disassembly("-g"))
    found = [text.strip() for piece in pieces for text in piece.instructions if not text.startswith(".L")]
    assert found == code.compile(capability).sass()
    assert {piece.place for piece in listing.ptx_pieces(ptx)} > {""}


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["matmul/gemw"], "did you mean matmul/gemv"),
        (["qqqqq"], "`minllm inspect` lists them all"),
        (["--cc", "nine"], "7.5, 8.0, 8.6, 8.7, 8.9, 9.0"),
        (["--cc", "7.0"], "choose one of"),
        (["activation", "--sass"], "give a whole name"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 1 and words in result.stderr and "Traceback" not in result.output


def test_missing_compilers_are_named_with_the_extra_that_brings_them(monkeypatch):
    monkeypatch.setattr(inspection, "missing_compilers", lambda: ("nvvm", "nvJitLink"))
    result = run(KERNEL)
    assert result.exit_code == 1
    assert "nvvm and nvJitLink" in result.stderr and "minllm[cu13]" in result.stderr and "No GPU is needed" in result.stderr


@needs_compilers
def test_without_nvdisasm_all_but_the_instructions_is_shown(monkeypatch):
    for module in (inspection, inspection_report):
        monkeypatch.setattr(module, "has_nvdisasm", lambda: False)
    result = run(KERNEL)
    assert result.exit_code == 0 and "occupancy" in result.stdout and "minllm[inspect]" in result.stdout
    assert "minllm[inspect]" in run(KERNEL, "--sass").stderr
    assert run(KERNEL, "--ptx").exit_code == 0


@pytest.mark.parametrize("text", ["9.0", "90", "sm_90a", "SM_90", " 9.0 "])
def test_ways_to_write_a_compute_capability(text):
    assert inspection.parse_compute_capability(text) == (9, 0)
    assert inspection.parse_compute_capability("12.0") == inspection.parse_compute_capability("sm_120") == (12, 0)


@pytest.mark.parametrize("query, count", [(KERNEL, 1), ("silu vectors", 3), ("activation/*/vectors/float16", 3)])
def test_what_a_name_means(query, count):
    assert len(inspection.find_kernels(query)) == count


def test_an_empty_match_is_an_error():
    with pytest.raises(InvalidOptionError, match="there is no kernel called"):
        inspection.find_kernels("silu tensor")
