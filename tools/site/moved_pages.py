"""An MkDocs hook: a page at each address that a lesson had before, which leads on to the lessons of today."""

from pathlib import Path

from lesson_list import lessons

# The name of a page in lessons/ that is gone: those that hold its text now, the first of which opens by itself.
MOVED = {
    "05_the_ladder_of_matrix_products": ("05a_matrix_products_in_tiles", "05b_matrix_products_on_hopper"),
    "16_batching_many_requests": ("16a_batching_many_requests", "16b_queues_and_a_full_cache"),
}
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<meta http-equiv="refresh" content="0; url={first}">
<link rel="canonical" href="{first}">
<link rel="icon" href="../../assets/images/favicon.png">
<title>This lesson has moved</title>
</head>
<body>
<main>
<h1>This lesson has moved</h1>
<p>It is now {links}.</p>
</main>
</body>
</html>
"""


def on_post_build(config):
    """Write them beside the site's pages, as soon as the lessons that they lead to are among these."""
    titles = {Path(path).stem: title for title, path in lessons()}
    folder = Path(config["site_dir"], "lessons")
    for old, new in MOVED.items():
        if all((folder / name / "index.html").exists() for name in new):
            links = " and ".join(f'<a href="../{name}/">{titles[name]}</a>' for name in new)
            (folder / old).mkdir(exist_ok=True)
            (folder / old / "index.html").write_text(PAGE.format(first=f"../{new[0]}/", links=links), encoding="utf-8")
