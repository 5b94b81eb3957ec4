"""The addresses of the repository and of the site, which stand in [project.urls] of pyproject.toml, and links made of them.

Until they stand there, links lead to files as they lie in the repository, and there are no badges.
"""

import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BRANCH = "main"


class Addresses(NamedTuple):
    """Addresses without a slash at the end; "" if unknown. repository: on GitHub, for hosted notebooks open no others."""

    repository: str = ""
    site: str = ""

    def file(self, path: str) -> str:
        """The page of a file of the repository; "" without an address."""
        return f"{self.repository}/blob/{BRANCH}/{path}" if self.repository else ""

    def hosted(self, notebook: str) -> dict[str, str]:
        """{name: address that opens a notebook of the repository} of hosted services; empty without an address."""
        if not self.repository.startswith("https://github.com/"):
            return {}
        place = self.file(notebook)
        return {
            "Colab": place.replace("https://github.com/", "https://colab.research.google.com/github/"),
            "Kaggle": f"https://kaggle.com/kernels/welcome?src={place}",
        }


def addresses(project: Path = ROOT / "pyproject.toml") -> Addresses:
    """The addresses in [project.urls]."""
    urls = tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("urls", {})
    return Addresses(*(urls.get(name, "").rstrip("/") for name in ("Repository", "Documentation")))


def on_config(config):
    """An MkDocs hook: the site knows its own address and that of the repository, which gives every page a link to edit it."""
    found = addresses()
    config.repo_url, config.repo_name, config.site_url = found.repository, found.repository.rpartition("/")[2], found.site
    return config
