"""One engine and one server for the tests of a module."""

import shutil

import httpx
import pytest

from minllm import AsyncLLM
from minllm.models.source import bundled_model
from minllm.server.in_process import serving
from tests.server.answering import answering

TEMPLATE = (
    "{% for tool in tools or [] %}# {{ tool.function.name }}\n{% endfor %}"
    "{% for m in messages %}# {{ m.role }}\n{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}# assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    """The bundled model with a chat template."""
    directory = tmp_path_factory.mktemp("chat") / "chat"
    shutil.copytree(bundled_model(), directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture(scope="module")  # a pipeline changes its process while it runs (pipeline/switch_interval.py)
def llm(chat_model):
    """The loaded model; few sequences at a time, so that some wait."""
    made = AsyncLLM(chat_model, device="cpu", dtype="float32", max_model_len=512, max_num_seqs=8, enable_prefix_caching=True)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def served(llm):
    """A server that a module's tests share."""
    with serving(llm) as found:
        yield found


@pytest.fixture
def http(served):
    """A client of the shared server, which checks that nothing is left behind."""
    with httpx.Client(base_url=served.address, timeout=30) as client:
        yield client
    assert not served.server.admission.open and not served.server.engine.client.num_open


@pytest.fixture
def saying(served, monkeypatch):
    """A function that lets the engine answer with a text of the test's."""
    return lambda text: monkeypatch.setattr(served.server.engine.client, "submit", answering(text))
