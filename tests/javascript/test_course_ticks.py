"""The course page's boxes: ticks are kept in the browser, and what is stored wrongly, or not at all, spoils nothing."""

from tests.javascript.modules import needs_javascript, run


def visits(*clicks: list[str], **stored) -> list:
    """For each visit of the page, the lessons that are ticked when it opens, and after these clicks."""
    (answered,) = run("course_ticks_cases.mjs", "course-ticks.js", [dict(stored, visits=clicks)])
    return answered


@needs_javascript
def test_ticks_are_kept_and_can_be_taken_back():
    kept, after = ["1", "5a", "16a"], ["1", "16a"]  # in the order of the page
    assert visits(["5a", "16a", "1"], ["5a"], []) == [[[], kept], [kept, after], [after, after]]


@needs_javascript
def test_what_is_stored_wrongly_does_not_stop_the_page():
    spoiled = ["not JSON", "null", "17", '{"1": true}', '"5b"', "[5, null]"]
    given = [dict(stored=text, visits=[["5b"], []]) for text in spoiled]
    assert run("course_ticks_cases.mjs", "course-ticks.js", given) == [[[[], ["5b"]], [["5b"], ["5b"]]]] * len(given)


@needs_javascript
def test_a_lesson_that_is_gone_leaves_the_others_ticked():
    assert visits([], stored='["21", "1"]') == [[["1"], ["1"]]]


@needs_javascript
def test_a_browser_that_refuses_to_store_ticks_until_the_page_closes():
    assert visits(["5b"], [], stored=None) == [[[], ["5b"]], [[], []]]
