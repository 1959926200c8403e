"""The guides stay short enough to be read: at most 15,000 words of prose."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDS = {"decisions.md"}  # a list of choices
NO_PROSE = re.compile(r"<!-- made.*?<!-- end -->|```.*?```", re.DOTALL)  # lists of options, and examples


def test_guides_have_at_most_15000_words():
    guides = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]
    words = {page.name: len(NO_PROSE.sub("", page.read_text(encoding="utf-8")).split()) for page in guides}
    assert len(words) >= 14 and sum(n for name, n in words.items() if name not in RECORDS) <= 15_000, words
