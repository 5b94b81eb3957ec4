"""requirements-dev.txt fits pyproject.toml, so that neither changes alone."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def locked_versions():
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def wanted(project, extra):
    for requirement in map(Requirement, project["optional-dependencies"][extra]):
        if requirement.name != "minllm":
            yield requirement
        for inner in requirement.extras if requirement.name == "minllm" else ():
            yield from wanted(project, inner)


def test_every_requirement_of_the_tests_is_locked_to_a_version_that_it_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = {}
    for one in locked_versions():
        locked.setdefault(canonicalize_name(one.name), []).append(next(iter(one.specifier)).version)
    for requirement in [*map(Requirement, project["dependencies"]), *wanted(project, "test"), *wanted(project, "cu13")]:
        versions = locked[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), (requirement, versions)
