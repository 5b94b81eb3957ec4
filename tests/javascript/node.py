"""Runs the site's modules in node, where there is one."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
JAVASCRIPTS = HERE.parent.parent / "docs" / "assets" / "javascripts"

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine to run the site's modules in")


def run(script: str, *arguments: Path, given=None):
    """What `script` of this folder writes, from JSON to JSON."""
    command = ["node", str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
