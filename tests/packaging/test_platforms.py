"""What tools/check_platforms.py asks pip for; asking takes a package index, and is for people to run."""

import importlib.util
from pathlib import Path

PATH = Path(__file__).parents[2] / "tools" / "check_platforms.py"
PROJECT = {
    "dependencies": ["numba>=0.66", "cuda-core>=1.2,<2; sys_platform != 'darwin'"],
    "optional-dependencies": {
        "docs": ["mkdocs==1.6.1", "minllm[serve]"],
        "serve": ["orjson>=3.10"],
        "cu13": ["numba-cuda[cu13]==0.30.4; sys_platform != 'darwin'"],
    },
}


def tool():
    spec = importlib.util.spec_from_file_location("check_platforms", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_markers_are_those_of_the_other_system():
    check_platforms = tool()
    seen = {name: markers | {"extra": ""} for name, (markers, _) in check_platforms.SYSTEMS.items()}
    assert check_platforms.requirements(PROJECT, ("docs", "cu13"), seen["macos-arm64"]) == ["numba>=0.66", "mkdocs==1.6.1", "orjson>=3.10"]
    windows = check_platforms.requirements(PROJECT, ("cu13",), seen["windows-amd64"])
    assert windows == ["numba>=0.66", "cuda-core<2,>=1.2", "numba-cuda[cu13]==0.30.4"]


def test_three_systems_are_asked_about():
    assert set(tool().SYSTEMS) == {"macos-arm64", "windows-amd64", "linux-aarch64"}
