"""NaN in logits on a GPU: it ends the requests that meet it, with an error that names it, in graphs and in eager steps."""

import pytest

from tests.engine.checks import break_token, check_nan_ends_its_requests
from tests.gpu.agreement import KV_CACHE_BYTES


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return break_token(tmp_path_factory.mktemp("broken") / "model", "llama3")


@pytest.mark.covering("enforce_eager", "speculates")
@pytest.mark.parametrize("speculates", [False, True])
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graph", "eager"])
def test_nan_in_the_model_ends_the_requests_that_meet_it(broken, enforce_eager, speculates):
    options = dict(speculative_config=dict(method="ngram", num_speculative_tokens=3)) if speculates else {}
    check_nan_ends_its_requests(
        broken, device="cuda", dtype="float32", kv_cache_memory_bytes=KV_CACHE_BYTES, max_num_seqs=8, enforce_eager=enforce_eager, **options
    )
