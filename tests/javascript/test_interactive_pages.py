"""The interactive pages in a headless browser, by keyboard: what they answer, and that nothing fails on the way.

The pages' own HTML is served without the site's theme around it, so that no site has to be built.
"""

import json
import re

import markdown
import pytest

from minllm.costs.experts import choice_probabilities, fullest_load
from minllm.costs.serving import StepCosts
from minllm.costs.speculation import expected_tokens, speed_up
from minllm.machine.hardware import GPUS
from minllm.models.shapes import find_config
from minllm.planning.plan import Wishes, make_plan
from tests.javascript.modules import HAS_BROWSER, ROOT, Files, headless_browser, served

DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not HAS_BROWSER, reason="no playwright with chromium to open pages in")


class Pages(Files):
    """docs/, and /NAME/ as the HTML of docs/NAME.md."""

    def __init__(self, *arguments):
        super().__init__(*arguments, directory=str(DOCS))

    def do_GET(self):
        source = DOCS / f"{self.path.partition('?')[0].strip('/')}.md"
        if not source.is_file():
            return super().do_GET()
        # The theme would let code break, and KaTeX would set the formulas.
        written = re.sub(r"\$\$.*?\$\$", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = "<style>code { overflow-wrap: anywhere }</style>" + markdown.markdown(written, extensions=["tables", "md_in_html"])
        text = text.replace('src="assets/', 'src="../assets/')  # as MkDocs does, since each page has a folder of its own
        body = "<!doctype html><meta charset=utf-8><link rel=icon href=data:,><body class=md-typeset>" + text
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture(scope="module")
def server():
    with served(Pages) as address:
        yield address


@pytest.fixture(scope="module")
def page():
    """One page for all tests: a new one takes a process and a profile of the browser's, half a CPU second."""
    with headless_browser() as browser:
        yield browser.new_page(viewport=dict(width=390, height=800))


@pytest.fixture
def open_page(page, server):
    """open_page(name) -> the page, ready; at the end no console message and no failed request may have come."""
    faults = []
    listeners = dict(
        console=lambda message: faults.append(message.text) if message.type in ("error", "warning") else None,
        pageerror=lambda error: faults.append(str(error)),
        response=lambda response: faults.append(response.url) if response.status >= 400 else None,
        request=lambda request: None if request.url.startswith((server, "data:")) else faults.append(request.url),
    )

    def opened(name, query=""):
        page.goto(f"{server}/{name}/{query}")
        page.wait_for_selector(".verdict")
        return page

    for event, listener in listeners.items():
        page.on(event, listener)
    yield opened
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    assert faults == []


def row(page, head):
    return page.locator("tr", has=page.locator("th", has_text=head)).locator("td").first.inner_text()


def test_the_calculator_answers_as_the_plan_does(open_page):
    page = open_page("calculator")
    page.select_option("#model", "llama-2-70b")
    page.select_option("#gpu", "NVIDIA H200")
    page.fill("#degree", "2")
    page.fill("#context", "1024")
    plan = make_plan(find_config("llama-2-70b")[1], GPUS["NVIDIA H200"], Wishes(context=1024, batch=16, tensor_parallel=2))
    assert plan.fits and page.inner_text(".verdict").startswith("It fits")
    assert row(page, "Largest batch") == f"{plan.largest_batch:,}"
    assert row(page, "Bytes of a token").startswith("328 kB (2.62 MB if each of the 8 query heads")
    assert row(page, "Decode step").startswith(f"{plan.decode.floor_ms:.1f} ms")
    page.fill("#degree", "1")
    assert "weights alone" in page.inner_text(".verdict")


def test_the_calculator_reads_a_pasted_config_and_explains_a_wrong_one(open_page):
    page = open_page("calculator")
    assert not page.is_visible("#pasted")
    page.select_option("#model", "pasted")
    assert "Paste" in page.inner_text(".verdict")
    wrong = {"{": "not JSON", "[1]": "one JSON object", '{"model_type": "bert"}': "bert", '{"model_type": "llama"}': "must be"}
    for text, answer in wrong.items():
        page.fill("#pasted", text)
        assert answer in page.inner_text(".verdict")
    page.fill("#pasted", json.dumps(dict(model_type="gpt2", vocab_size=50257)))
    page.fill("#context", "1024")
    assert page.inner_text(".verdict").startswith("It fits")
    page.fill("#batch", "")
    assert "whole number" in page.inner_text(".verdict")


def test_the_calculator_says_how_many_experts_a_batch_reads(open_page):
    page = open_page("calculator", "?model=qwen3-30b-a3b&gpu=NVIDIA+H200&batch=16&context=1024")
    numbers = "30.5 billion, of which a token multiplies by 3.35 billion; a decode step reads about 82.4 experts of each layer"
    assert row(page, "Numbers of the weights") == numbers
    assert row(page, "Decode step, at least").startswith("9.75 ms")
    assert page.locator("th", has_text="expert up projections").count() == 1


def test_the_calculators_address_keeps_what_is_compared(open_page):
    page = open_page("calculator", "?gpu=NVIDIA+H200&otherGpu=Tesla+T4&batch=none&colour=red")
    assert "batch = “none”" in page.inner_text("[role=alert]") and "“colour”" in page.inner_text("[role=alert]")
    assert page.locator("caption", has_text="Side by side").count() == 1
    measured = row(page, "llama-3.1-8b on H200: decode step, batch 16, context 192")
    plan = make_plan(find_config("llama-3.1-8b")[1], GPUS["NVIDIA H200"], Wishes(context=192, batch=16))
    floor = page.locator("tr", has=page.locator("th", has_text="batch 16, context 192")).locator("td").nth(1).inner_text()
    assert measured == "4.18 ms" and floor == f"{plan.decode.floor_ms:.2f} ms"
    page.select_option("#model", "qwen3-8b")
    page.fill("#batch", "4")
    assert page.locator("p", has_text="No step of these models was measured").count() == 1
    before = page.inner_text(".answer")
    page.reload()
    page.wait_for_selector(".verdict")
    assert page.inner_text(".answer") == before
    page.fill("#batch", "1e300")
    assert "at most 1,000,000,000" in page.inner_text(".verdict.bad")


def test_measured_kernels_are_filtered_by_stage_and_sizes(open_page):
    page = open_page("roofline")
    count, rows = page.locator("rect.measured-dot").count, page.locator("table:has(caption:text('Measured on')) tbody tr:visible").count
    every, stages = count(), page.locator("#stage option").count() - 1
    assert rows() == stages < every  # the best of each stage; all of them open
    page.click("summary:has-text('kernels')")
    assert rows() == stages + every
    page.select_option("#stage", "decode attention")
    some = count()
    assert 0 < some == rows() < every
    page.select_option("#sizes", index=2)
    assert 0 < count() < some
    page.select_option("#stage", "matmul")
    assert page.input_value("#sizes") == "" and some < count() < every
    page.select_option("#gpu", "Tesla T4")
    assert page.locator("p", has_text="No kernel was measured on a Tesla T4").count() == 1


def test_rows_of_the_results_open_where_words_match(open_page):
    page = open_page("results")
    shown = page.locator("details.result-rows tbody tr:visible")
    assert shown.count() == 0 and page.evaluate("document.documentElement.scrollHeight") < 12000
    page.fill("#words", "decode step 8b batch 16 192")
    assert shown.count() == 1 and page.inner_text(".verdict").startswith("1 of ")
    page.reload()
    page.wait_for_selector(".verdict")
    assert shown.count() == 1
    page.fill("#words", "nobody measured this")
    assert shown.count() == 0 and "use fewer" in page.inner_text(".verdict.bad")
    page.fill("#words", "")
    page.select_option("#benchmark", "rope")
    assert shown.count() == 1


def test_dots_move_with_the_sliders_and_measured_ones_stay(open_page):
    page = open_page("roofline")

    def across(selector):
        return [shape.bounding_box()["x"] for shape in page.locator(selector).all()]

    measured, before = across("rect.measured-dot"), across(".dot circle")
    assert measured and page.locator("caption:visible", has_text="measured on one NVIDIA H200").count() == 1
    page.focus("#batch")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    after = across(".dot circle")
    assert page.inner_text("output[for=batch]") == "64"
    projection, attention = 1, 3  # after the attention norm and rope; the embedding has no dot
    assert after[projection] > before[projection] + 50 and abs(after[attention] - before[attention]) < 2
    assert across("rect.measured-dot") == measured
    page.select_option("#phase", "prefill")
    assert page.locator(".dot.arithmetic").count() > 4
    page.select_option("#gpu", "Tesla T4")
    assert page.locator("rect.measured-dot").count() == 0


def test_flash_attention_steps_by_keyboard_to_the_plain_softmax(open_page):
    page = open_page("flash-attention-tiles")
    page.select_option("#example", "huge")
    page.select_option("#tile", "3")
    page.focus("#forward")
    for _ in range(2):
        page.keyboard.press("Enter")
    assert "rises from −∞ to 712" in page.inner_text(".verdict")
    assert page.locator(".score-cell.now").count() == 3
    page.keyboard.press("ArrowLeft")
    assert "Load keys 1 to 3" in page.inner_text(".verdict")
    page.focus("#last")
    page.keyboard.press("Enter")
    text = page.inner_text("#flash-attention-tiles")
    assert ": the same." in text and "infinite in float32" in text
    assert page.evaluate("document.activeElement.id") == "last"


EXPLORED = ["calculator", "roofline", "hardware-and-cost", "serving-load", "speculative-decoding", "experts"]
PICTURES = ["flash-attention-tiles", "batching", "warp-accesses", "pipeline", "split-waves", "step-timeline", "weight-codes"]


@pytest.mark.parametrize("name", EXPLORED + PICTURES)
def test_every_field_has_a_label_and_a_phone_need_not_scroll_sideways(open_page, name):
    page = open_page(name)
    for field in page.locator("input, select, textarea").all():
        assert page.locator(f"label[for={field.get_attribute('id')}]").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not re.search("NaN|undefined|Infinity", page.inner_text("body"))


@pytest.mark.parametrize("name", ["batching", "calculator", *EXPLORED[2:], "split-waves", "warp-accesses"])
def test_letters_and_huge_numbers_are_answered_in_place(open_page, name):
    page = open_page(name, "?gone=1&batch=1e999&model=gone")
    for field in page.locator(".interactive input[type=number]").all():
        before = field.input_value()
        for wrong in ("e", "-5", "1e999", "9" * 20):
            field.press("Control+A")
            page.keyboard.insert_text(wrong)  # one event, as pasting is: the page answers each
            assert field.input_value() in (wrong, "")  # "": what the browser does not take for a number
            said = page.inner_text(".interactive")
            assert re.search(r"must be|is a (whole )?number|is above 0", said), (field.get_attribute("id"), wrong, said[:300])
            assert not re.search("NaN|Infinity|undefined", said + page.inner_html(".interactive")), (field.get_attribute("id"), wrong)
        field.fill(before)


def test_the_paged_cache_tells_its_story_and_can_be_played(open_page):
    page = open_page("paged-cache")
    told = []
    page.focus("#next")
    while page.get_attribute("#next", "aria-disabled") == "false":
        page.keyboard.press("Enter")
        told.append(page.inner_text(".verdict"))
    story = " ".join(told)
    for what in ("the first 8 tokens were in the cache", "copy on write", "kept until", "eviction"):
        assert what in story
    page.click("#again")
    assert page.locator(".block-cell.is-free").count() == page.locator(".block-cell").count() == 12
    page.select_option("#prompt", "exact")
    page.click("#request")
    page.click("#request")
    assert "the first 4 tokens were in the cache, and 4 had to be computed" in page.inner_text(".verdict")
    page.click("#fork")
    assert page.locator(".block-cell.is-shared").count() == 2
    for _ in range(10):
        page.click("#request")
    assert "more blocks" in page.inner_text(".verdict.bad")


def test_an_outlier_spoils_the_codes_beside_it_on_the_page_of_weights(open_page):
    page = open_page("weight-codes")

    def of_others():
        return float(re.search(r"column 21, ([\d.]+) %", page.inner_text(".verdict"))[1])

    page.select_option("#format", "int8")
    page.focus("#outlier")
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    before = of_others()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert before < 1.5 < 5 < of_others()
    page.select_option("#format", "fp8")
    assert of_others() < 5
    page.select_option("#format", "int4")
    page.focus("#groups")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("output[for=groups]") == "16" and page.inner_text(".verdict").startswith("5.00 bits per number")
    page.select_option("#row", "3")
    assert page.locator("caption", has_text="Row 3").count() == 1 and page.locator(".picture rect").count() == 8 * 64 + 1
    page.locator(".picture rect").first.click()
    assert page.locator("caption", has_text="Row 0").count() == 1 and page.input_value("#row") == "0"


def test_policies_share_the_arrivals_of_the_page_about_batching(open_page):
    page = open_page("batching")
    before = page.inner_text(".verdict")
    assert before.startswith("SplitFuse: ") and page.locator("rect.decode").count() > 100
    page.select_option("#policy", "static")
    assert page.inner_text(".verdict").startswith("static batching: ")
    page.select_option("#policy", "split_fuse")
    assert page.inner_text(".verdict") == before
    page.fill("#rate", "")
    assert "above 0" in page.inner_text(".verdict.bad")
    page.fill("#rate", "200")
    page.focus("#budget")
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    assert page.inner_text("output[for=budget]") == "128" and page.inner_text(".verdict") != before


def test_recorded_requests_are_shown_one_by_one(open_page):
    page = open_page("serving-load", "?load=2")
    assert page.locator(".picture rect, .picture circle").count() == 48 and "0 of 48 requests are refused" in page.inner_text(".verdict")
    page.select_option("#server", "at most 4 wait")
    refused = page.locator(".picture circle").count()
    assert refused > 0 and f"{refused} of 48 requests are refused" in page.inner_text(".verdict")
    page.select_option("#server", "two users, one queue")
    assert page.locator("tbody tr").count() == 8 and "user B" in page.inner_text("tbody")


def test_an_index_can_be_edited_and_a_wrong_one_is_explained(open_page):
    page = open_page("warp-accesses")
    assert page.inner_text(".verdict").startswith("4 sectors of 32 bytes") and page.locator("rect.sector").count() == 4
    page.fill("#index", "64 * lane")
    assert page.inner_text(".verdict").startswith("32 sectors")
    page.select_option("#memory", "shared")
    assert "32-way bank conflict" in page.inner_text(".verdict")
    page.fill("#index", "65 * lane +")
    assert "At the end" in page.inner_text(".verdict.bad") and page.locator("svg").count() == 1
    page.select_option("#example", "lane + 3")
    assert page.input_value("#index") == "lane + 3" and "no bank conflict" in page.inner_text(".verdict")
    page.fill("#k", "-1")
    assert "k is a whole number" in page.inner_text(".verdict.bad")


def test_the_pipeline_steps_by_keyboard_and_slider(open_page):
    page = open_page("pipeline")
    page.focus("#forward")
    for _ in range(5):
        page.keyboard.press("Enter")
    assert "need not wait for “empty” of stage 0" in page.inner_text(".verdict")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text(".verdict").startswith("Consumer warp 3 waits for “full” of stage 0")
    page.focus("#event")
    page.keyboard.press("End")
    assert page.get_attribute("#last", "aria-disabled") == "true" and page.locator("td", has_text="waits for").count() == 0


def test_waves_follow_the_splits(open_page):
    page = open_page("split-waves")
    assert page.inner_text(".verdict").startswith("336 blocks on 396 slots: 1 wave")
    assert page.locator("caption", has_text="split_kv measured on one NVIDIA H200").count() == 1
    page.fill("#splits", "50")
    assert page.inner_text(".verdict").startswith("400 blocks on 396 slots: 2 waves")
    page.focus("#moment")
    page.keyboard.press("End")
    assert "0 of 396 slots work" in page.inner_text("output[for=moment]")
    page.fill("#splits", "257")
    assert "from 1 to 256" in page.inner_text(".verdict.bad")
    page.fill("#splits", "")
    page.fill("#sequences", "1024")
    assert "at most 6,000 blocks" in page.inner_text(".picture")


def test_the_recorded_step_is_walked_kernel_by_kernel(open_page):
    page = open_page("step-timeline")
    page.focus("#kernel")
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert "9 of 26, attention.split_tensor_core" in page.inner_text(".verdict")
    wide = page.locator("rect.chosen-kernel").bounding_box()["width"]
    page.select_option("#zoom", "0.2")
    assert page.locator("rect.chosen-kernel").bounding_box()["width"] > 3 * wide


def test_bytes_time_and_load_of_experts_move_with_the_fields(open_page):
    page, gpu = open_page("experts"), GPUS["NVIDIA H200"]
    one = 48 * 3 * 2048 * 768 * 2  # bytes of an expert in all layers
    read, router = 128 * (1 - (15 / 16) ** 16), 48 * 128 * 2048 * 2
    milliseconds = (read * one + router) / gpu.ceiling_tb_s / 1e9
    assert page.inner_text(".verdict") == (
        f"16 tokens read {read:.1f} of 128 experts per layer: {read * one / 1e9:.1f} GB of weights, at least {milliseconds:.2f} ms a step."
    )
    assert row(page, "Experts without a token") == f"{128 - read:.1f}" and page.locator("rect.load").count() == 128
    assert row(page, "Tokens of the fullest expert").startswith(f"{fullest_load(choice_probabilities(128, 8), 16):.2f}, ")
    page.focus("#tokens")
    page.keyboard.press("Home")
    assert page.inner_text(".verdict").startswith("1 token reads 8.00 of 128 experts")
    page.focus("#skew")
    page.keyboard.press("ArrowRight")
    page.fill("#experts", "8")
    page.fill("#chosen", "2")
    assert page.inner_text(".verdict").startswith("1 token reads 2.00 of 8 experts")
    page.fill("#chosen", "9")
    assert "from 1 to the 8 that there are" in page.inner_text(".verdict.bad") and page.locator("svg").count() == 0
    page.fill("#experts", "257")
    assert "from 1 to 256" in page.inner_text(".verdict.bad")


def test_prices_are_compared_over_gpus(open_page):
    page = open_page("hardware-and-cost")
    rows = page.locator("tbody tr")
    assert rows.count() == len(GPUS)
    page.fill("#prices", "h200 3.5, h100-sxm 2.5")
    assert "generates a million tokens for the least" in page.inner_text(".verdict")
    page.select_option("#order", "cost")
    assert rows.first.locator("td").nth(7).inner_text() != "–" and rows.last.locator("td").nth(7).inner_text() == "–"
    page.fill("#prices", "h200 cheap")
    assert "“h200 cheap”" in page.inner_text(".verdict.bad")
    page.fill("#prices", "")
    page.fill("#batch", "1.5")
    assert "whole number" in page.inner_text(".verdict.bad")


def test_speculation_answers_as_the_costs_do_and_refuses_in_place(open_page):
    page = open_page("speculative-decoding")
    found, gpu = find_config("llama-3.1-8b")[1], GPUS["NVIDIA H200"]
    step = StepCosts.of(found, gpu.measured_copy_tb_s or gpu.bandwidth_tb_s, gpu.measured_bf16_tflops or gpu.bf16_tflops)
    assert f"{speed_up(step, 0.7, 1, 4):.2f} times as fast" in page.inner_text(".verdict.good")
    page.focus("#acceptance")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("output[for=acceptance]") == "75 %"
    page.focus("#sequences")
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("output[for=sequences]") == "256" and "Best: no drafts." in page.inner_text(".verdict.bad")
    assert f"{speed_up(step, 0.75, 256, 4):.2f} times as fast" in page.inner_text(".verdict.bad")
    assert row(page, "4, yours").startswith(f"{expected_tokens(0.75, 4):.2f}")
    for wrong in ("", "-1", "2.5", "65"):
        page.fill("#drafts", wrong)
        assert "whole number from 0 to 64" in page.inner_text(".verdict.bad") and page.locator("svg").count() == 0
    page.fill("#drafts", "20")
    assert page.inner_text(".verdict.bad").startswith("20 drafts: ") and page.locator("th", has_text="20, yours").count() == 1
    page = open_page("speculative-decoding", "?acceptance=90&sequences=32&drafts=5&source=gpt2&gpu=none")
    assert page.inner_text("output[for=acceptance]") == "90 %" and page.inner_text(".verdict.good").startswith("5 drafts: ")
    assert "gpu = “none”" in page.inner_text("[role=alert]") and page.input_value("#source") == "gpt2"
