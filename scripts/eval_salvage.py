"""What an extraction reply loses when it is cut at its token limit: before, when it lost everything, and since.

Ready extractions are rendered as the replies of a model (with descriptions and types of the usual length), cut at
`index.extract_tokens` tokens of the packaged model's tokenizer, and read again. Usage:

    python scripts/eval_salvage.py OPENIE_FILE... [--tokens 512,1024] [--words 8]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gpu_rag.index.stages.extraction import Extracted
from gpu_rag.models.packaged import packaged_llm_folder
from gpu_rag.models.pretrained import load_tokenizer
from gpu_rag.settings import Settings
from gpu_rag.sources.corpus.openie import OpenIERow, read_openie
from gpu_rag.text.lenient import Read, read_json
from gpu_rag.text.replies import parse_json
from gpu_rag.text.structs import schema_of
from gpu_rag.types import Malformed

DESCRIPTION = "a short description of what the passage says of it here"


def rendered(row: OpenIERow, words: int) -> str:
    """The reply of a model that found just this."""
    description = " ".join(DESCRIPTION.split()[:words])
    entities = [
        {"name": name[:200], "aliases": [], "types": ["thing"], "description": description}
        for name in row.entities[:30]
    ]
    return json.dumps(
        {"entities": entities, "triples": [list(triple) for triple in row.triples[:30]]}, ensure_ascii=False
    )


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tokens", default=f"256,512,{Settings().index.extract_tokens}")
    parser.add_argument("--words", type=int, default=8, help="words of a description")
    options = parser.parse_args()
    tokenizer = load_tokenizer(packaged_llm_folder())
    print("| set | passages | limit | cut | triples written in full | kept before | kept now |", end="")
    print(" names written in full | kept before | kept now |\n|---|---|---|---|---|---|---|---|---|---|")
    for path in options.files:
        rows = [row for row in read_openie(path) if isinstance(row, OpenIERow)]
        texts = [rendered(row, options.words) for row in rows]
        encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for limit in map(int, options.tokens.split(",")):
            total = {"triples": [0, 0, 0], "entities": [0, 0, 0]}
            n_cut = 0
            for text, offsets in zip(texts, encoded["offset_mapping"]):
                if len(offsets) <= limit:
                    continue
                n_cut += 1
                cut = text[: offsets[limit - 1][1]]
                strict, found = parse_json(cut, schema_of(Extracted)), read_json(cut, schema_of(Extracted))
                for name, counts in total.items():
                    counts[0] += written(text, name, len(cut))
                    counts[1] += 0 if isinstance(strict, Malformed) else len(strict[name])
                    counts[2] += len(found.value[name]) if isinstance(found, Read) else 0
            cells = [f"{n:,}" for counts in total.values() for n in counts]
            share = f"{n_cut:,} ({100 * n_cut / len(rows):.1f} %)"
            print(f"| {path.parent.name} | {len(rows):,} | {limit} | {share} | {' | '.join(cells)} |")


def written(text: str, name: str, end: int) -> int:
    """How many items of a list of the reply end before the character `end`."""
    items, start = json.loads(text)[name], text.index(f'"{name}": [') + len(name) + 4
    lengths = (len(json.dumps(items[: i + 1], ensure_ascii=False)) - 1 for i in range(len(items)))
    return sum(start + length <= end for length in lengths)


if __name__ == "__main__":
    main()
