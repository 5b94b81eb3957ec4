"""Detective cases: the simulator finds each bug, where the case says, and nothing in its mended twin."""

import re

import pytest

from minllm.course import investigate, show_case
from minllm.course.cases import NAMES, all_cases, find
from minllm.course.cases.case import finding
from minllm.course.layout import WIDTH
from minllm.errors import ExerciseError

CLOSED = re.compile(r"<details.*?</details>", re.DOTALL)
# What is found, and a part of the line that the finding names; "" where it is no single line.
FOUND = {
    "restless_sum": (r"race on shared memory: .* partial\[\d+\]", "partial[thread] += partial[thread + distance]"),
    "clairvoyant": (r"memory that nobody wrote: the global array scores, element \[0, 1\]", "maximum = max(maximum, scores[query, key])"),
    "idle_bytes": (r"32 sectors of 32 bytes", ""),
    "one_customer": (r"index \[0, 96\] is out of bounds", "following = weight[row, first + WARP + lane]"),
    "last_tile": (r"cp.async that thread .* nobody has waited for that yet", "total += buffers[tile % 2"),
    "hanging_norm": (r"meet at a block barrier from different places", "cuda.syncthreads()  # this step's sums"),
    "rising_scores": (r"scores falling: right\n.*\nscores rising: out\[component 0\]: expected", ""),
    "lagging_rows": (r"a bulk store .* reads tile\[0\] .* no fence\.proxy\.async", "cp_async_bulk_wait_group_read_0()"),
    "long_batch": (r"array allowed has overflowed: it is 4294967296 without the 32-bit cast", "first = int32("),
    "too_early": (r"reads the global array hidden, which hidden_kernel wrote, before griddepcontrol\.wait", "scaled = hidden[i]"),
    "same_histogram": (r"weight, column 1 alone\[input 0, output 1\]: expected .* got 0 ", ""),
    "slightly_bright": (r"out, positive inputs\[output 0\]: expected ", ""),
    "whole_rows_only": (r"out, 4 scales per row\[output 0\]: expected ", ""),
    "punished_for_success": (r"nobody wrote: the global array keys, element \[0, 5\]", "total += keys[sequence, position]"),
    "forgotten_question": (r"request a: right\nrequest b: expected .* got ", ""),
    "yesterdays_news": (r"race on global memory: .* the global array rank \d's copies\[\d\]", "out[i] = copies[0][i] + copies[1][i]"),
    "split_decision": (r"ranks 0 and \d differ in \d+ of 32 elements, by ", ""),
    "four_strangers": (r"2 ranks: right\n4 ranks: heads \[2, 3, 4, 5\] differ from those of one GPU", ""),
    "half_a_sentence": (r"half a letter on its way: right\none that ends with a stop token: sent 'a' -, ' \+ b' -; the finish_reason", ""),
    "rooms_without_guests": (r"the client of request b left while its prompt is tokenised; it still runs, holds 13 blocks", ""),
    "calm_dashboard": (r"1 body: right\n20 bodies: .* clients get one 480 ms late", ""),
    "wrong_when_quiet": (r"nobody wrote: the global array offsets, element \[[23]\]", "counts[expert] = offsets[expert + 1]"),
    "lukewarm": (r"weights, one favourite\[token 0, place 0\]: expected 0.98\d*, got 0.7", ""),
    "fickle_text": (r"4 runs with the same arrays differ in \d+ of 48 elements\nout\[token \d, element \d+\]: ", ""),
    "too_agreeable": (r"share of the tokens\[token 0\]: expected 0.25, got 0.3125 ", ""),
    "slow_company": (r"with wants_logprobs=True the GPU is idle between steps\n.*host  copy logprobs\n", ""),
    "every_fourth_token": (r"nobody wrote: the global array key_cache, element \[5, 3, 0\]", "total += query[i] * key_cache"),
    "someone_elses_answer": (r"the token that is continued\[request 1\]: expected 28, got 15", ""),
    "two_stories": (
        r"race on global memory: .* the global array cache, element \[1, 2\], which thread \(0, 0, 0\) writes",
        "cache[block_tables",
    ),
    "louder_and_louder": (r"nobody wrote: the global array scales, element \[3, 0\]", "total += query[i] * (float32(codes"),
    "long_silence": (r"request \d+ has \d+ of 60 tokens .* requests that arrived after it have ended", ""),
    "fewer_every_day": (r"request c of 300 tokens was aborted after 2 steps, nobody runs, and 19 blocks are held", ""),
    "echo": (r"0 steps ahead, request b: right\n1 steps ahead, request a: expected \[11, 12, .*got \[11, 11, 12, 12", ""),
    "rare_nan": (r"out, the huge score at key 1\[component 0\]: expected .* got nan", ""),
    "short_neighbour": (r"nobody wrote: the global array maxima, element \[1, 1\]", "maximum = max(maximum, maxima[sequence, split])"),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_bug_is_found_and_its_line_named(name):
    case = find(name)
    message = investigate(name).message
    pattern, line = FOUND[name]
    assert re.search(pattern, message, re.DOTALL), message
    if line:
        places = [int(number) for number in re.findall(rf"minllm/course/cases/{name}\.py:(\d+)", message)]
        text = case.module_text.splitlines()
        assert any(line in text[place - 1] for place in places), message


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_in_the_twin(name):
    found = investigate(name, find(name).mended)
    assert found.message == "" and "Nothing found" in repr(found)


@pytest.mark.parametrize("name", NAMES)
def test_a_case_names_its_guilty_line(name):
    case = find(name)
    assert case.name == name and case.guilty in case.module_text.splitlines()[case.guilty_line - 1]


def test_a_case_on_a_page_tells_nothing_before_it_is_opened():
    for case in all_cases():
        markdown = show_case(case.name)._repr_markdown_()
        open_part = CLOSED.sub("", markdown)
        assert case.story in open_part and f'investigate("{case.name}")' in markdown
        assert case.solution not in open_part and case.hint not in open_part
        folded = "\n".join(CLOSED.findall(markdown))
        assert case.solution in folded and case.hint in folded
        told = folded.partition("What the simulator finds")[2].partition("```text\n")[2].partition("\n```")[0]
        assert told.split() == finding(case, case.broken).message.split()
        assert max(map(len, told.splitlines())) <= WIDTH or max(map(len, told.split())) > WIDTH - 8


def test_a_case_that_is_none_is_refused():
    with pytest.raises(ExerciseError, match="there are restless_sum"):
        investigate("no such case")
