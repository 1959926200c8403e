"""300 fresh pairs of question and answer: which are marked `supported` by the road that rows take.

149 answers are the packaged model's to questions of one hop over evidence of `ppr`; 151 were written beside such
evidence, right ones often as paraphrases, wrong ones in the ways of readers. All were written and labelled before their
writer read the rules. Passages are those of the larger sample and of the first rows of the file, which have a title.
"""

import json
from pathlib import Path

import pytest

from gpu_rag.program.support import grounded
from gpu_rag.sample import world_path
from gpu_rag.types import Evidence
from gpu_rag.types import Path as Chain

ROWS = [
    json.loads(line)
    for file in (Path(__file__).parent / "data" / "support_fresh.jsonl", world_path("corpus.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]
TEXTS = {row["title"]: row["text"] for row in ROWS if "title" in row}
PAIRS = [row for row in ROWS if "question" in row]


def is_supported(pair):
    evidence = [Evidence(title, title, TEXTS[title], 0, len(TEXTS[title]), 1.0) for title in pair["evidence"]]
    chains = [Chain(" ".join(edge[1] for edge in edges), tuple(map(tuple, edges))) for edges in pair["paths"]]
    return grounded(pair["question"], pair["answer"], evidence, chains).status == "supported"


def share(right, origin):
    marks = [is_supported(pair) for pair in PAIRS if (pair["right"], pair["origin"]) == (right, origin)]
    return sum(marks) / len(marks)


def test_the_set_is_whole():
    assert len(PAIRS) == 300 and sum(pair["origin"] == "model" for pair in PAIRS) == 149
