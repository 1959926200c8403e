"""How many distinct names the exact merge of HiGraAgent loses where surnames are aliases: one JSON line.

usage: python scripts/simulate_aliases.py OPENIE [--n 600] [--seed 0]

As an extractor that gives each person's last name as an alias would have it: names of two to four words, all with a
capital, of the OpenIE file, `n` of them by chance, with the last word as alias. Every one is another thing, so that
each name that does not survive is a wrong merge. "with_bare": beside them each last name as an entity of its own, which
may join the one name that it ends.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from gpu_rag.methods.higra.stages.exact import Key, careful_merge, exact_merge
from gpu_rag.settings import make_settings
from gpu_rag.text.normalise import normalise_name


def people(path: Path) -> list[str]:
    """The normalised names that look like those of people, sorted."""
    found = set()
    for line in path.read_text("utf-8").splitlines():
        for name in json.loads(line)["entities"]:
            words = name.split()
            if 2 <= len(words) <= 4 and all(word.isalpha() and word[0].isupper() for word in words):
                found.add(normalise_name(name))
    return sorted(found)


def lost(names: list[str], keys: list[Key], groups: list[int]) -> int:
    """How many of the names are in a group with another one of them."""
    of = {key[0]: group for key, group in zip(keys, groups)}
    return len(names) - len({of[name] for name in names})


def main() -> None:
    """Simulates and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("openie", type=Path)
    parser.add_argument("--n", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = people(options.openie)
    names = random.Random(options.seed).sample(names, min(options.n, len(names)))
    last = {name: name.rpartition(" ")[2] for name in names}
    full: list[Key] = [(name, frozenset(), frozenset({last[name]})) for name in names]
    bare: list[Key] = [(word, frozenset(), frozenset()) for word in sorted({*last.values()} - {*names})]
    most = make_settings({}).alignment.max_cluster
    document: dict[str, Any] = {"names": len(names), "surnames": len(bare)}
    for label, keys in (("alone", full), ("with_bare", [*full, *bare])):
        groups = {"all": exact_merge(keys), "unambiguous": careful_merge(keys, most)[0]}
        document[label] = {rule: lost(names, keys, found) for rule, found in groups.items()}
        document[label] |= {f"{rule}, entities": len(set(found)) for rule, found in groups.items()}
    print(json.dumps(document))


if __name__ == "__main__":
    main()
