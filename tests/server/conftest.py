"""One engine and one server for the tests of a module."""

import shutil
import ssl

import httpx
import pytest

from minllm import AsyncLLM
from minllm.models.source import bundled_model
from minllm.server.in_process import serving
from tests.engine.models import ending_model_directory
from tests.server.answering import answering

NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # for http: a client that reads the system's takes 20 ms
TEMPLATE = (
    "{% for tool in tools or [] %}# {{ tool.function.name }}\n{% endfor %}"
    "{% for m in messages %}# {{ m.role }}\n{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}# assistant\n{% endif %}"
)


def with_template(model, directory):
    """A copy of a model's directory that has the chat template too."""
    shutil.copytree(model, directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    """A small random model with a chat template."""
    return with_template(ending_model_directory(), tmp_path_factory.mktemp("chat") / "chat")


@pytest.fixture(scope="session")
def bundled_chat_model(tmp_path_factory):
    """The bundled model with a chat template: its answers last long enough to be left, stopped or waited for."""
    return with_template(bundled_model(), tmp_path_factory.mktemp("bundled") / "chat")


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
    with httpx.Client(base_url=served.address, timeout=30, verify=NO_CERTIFICATES) as client:
        yield client
    assert not served.server.admission.open and not served.server.engine.client.num_open


@pytest.fixture
def saying(served, monkeypatch):
    """A function that lets the engine answer with a text of the test's."""
    return lambda text: monkeypatch.setattr(served.server.engine.client, "submit", answering(text))
