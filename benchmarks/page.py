"""The pages of the documentation that show results: the part of them that a run writes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "benchmarks"
PAGE = FOLDER / "index.md"
TABLES_PAGE = FOLDER / "results.md"
SPARK_PAGE = FOLDER / "spark.md"
DATA = FOLDER / "results.json"
PICTURE = FOLDER / "overview.svg"
TIMES_PICTURE = FOLDER / "latency.svg"
GROWTH_PICTURE = FOLDER / "growth.svg"

_RESULTS = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end of results -->)", re.DOTALL)


def with_results(text: str, markdown: str) -> str:
    """The page with new results; raises `ValueError` where it has no place for them."""
    new, places = _RESULTS.subn(lambda _: f"\n{markdown}\n", text)
    if places != 1:
        raise ValueError("no <!-- results --> and <!-- end of results --> around the old ones")
    return new


def write(markdown: str, path: Path = PAGE) -> None:
    """Put new results into a page."""
    text = path.read_text(encoding="utf-8")
    path.write_text(with_results(text, markdown), encoding="utf-8")
