"""Train the weights that `fused` ships, and score them: each family of questions by weights of the other families.

usage: python scripts/train_fused.py FAMILY:INDEX=QUESTIONS [...] [--also FAMILY:INDEX=QUESTIONS ...]
           [--half even|odd|all] [--pull 0.01] [--out weights.json] [--cache FOLDER] [--csv FILE]

Both mixes (with and without `bubblerag`) are scored. Weights of the other families score each family, on the half of
its questions that --half names by the parity of sha1(question id), paired with `ppr`. In training all families have the
same weight. --also: sets that are trained on and not scored. --out: write weights of all families. --cache: keep the
examples of each set for another run.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, replace
from hashlib import sha1
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize

from gpu_rag import Index, load_questions
from gpu_rag.evaluation.bootstrap import paired_difference
from gpu_rag.evaluation.compare import score
from gpu_rag.evaluation.kb import KbGold
from gpu_rag.index.folder import sha256_text
from gpu_rag.methods.fused.batched import PAIRS, columns
from gpu_rag.methods.fused.model import Learnt, Model, fit, pair_sums
from gpu_rag.methods.fused.tune import Examples, Places, examples
from gpu_rag.sources.questions import QuestionRow

AT = (2, 5, 10)
MIXES = (("bubblerag",), ())
STEPS = 200  # of the solver
Seen = tuple[str, str, Examples, np.ndarray]  # family, name of the set, with `bubblerag`, recall of `ppr`


def load_set(item: str, cache: Path | None) -> Seen:
    """Questions, rankings and gold of one set, from the cache if it has them. item: FAMILY:INDEX=QUESTIONS."""
    family, _, rest = item.partition(":")
    folder, _, questions = rest.partition("=")
    rows = [row for row in load_questions(Path(questions))[0] if row.gold_ids]
    index, name = Index.open(folder), Path(folder).name
    file = None if cache is None else cache / f"{name}-{content_of(index, Path(questions))}.npz"
    if file is not None and file.exists():
        kept = np.load(file)
        learnt = Learnt(kept["values"], kept["pairs"], kept["gold"], np.ones(len(rows)))
        places = [Places(*parts) for parts in json.loads(str(kept["places"]))]
        return family, name, Examples(rows, learnt, places), kept["ppr"]
    print(f"{name}: {len(rows)} questions", file=sys.stderr)
    engine = index.engine({})
    answers = engine.run("ppr", [row.question for row in rows], limit=max(AT), retrieval_only=True).answers
    scores = score(engine, answers, rows, AT, True, KbGold(index, rows))
    ppr, seen = np.array([scores[f"recall@{k}"] for k in AT]).T, examples(engine, rows)
    engine.models.close()
    if file is not None:
        learnt, places = seen.learnt, json.dumps([astuple(own) for own in seen.places])
        np.savez(file, values=learnt.values, pairs=learnt.pairs, gold=learnt.gold, places=places, ppr=ppr)
    return family, name, seen, ppr


def content_of(index: Index, questions: Path) -> str:
    """A hash of all that the examples of a set depend on: index, questions, and names of the features."""
    parts = [index.manifest.digest(), questions.read_text(encoding="utf-8"), "places", *columns(MIXES[0]), *PAIRS]
    return sha256_text("\n".join(parts))[:16]


def join_sets(sets: list[Seen], n_columns: int) -> Learnt:
    """The questions of several sets, with the same weight for each family. n_columns: the first columns to use."""
    sizes = Counter[str]()
    for family, _, seen, _ in sets:
        sizes[family] += len(seen.rows)
    learnt = [seen.learnt for _, _, seen, _ in sets]
    weight = [np.full(len(seen.rows), 1 / sizes[family]) for family, _, seen, _ in sets]
    values = np.concatenate([part.values[..., :n_columns] for part in learnt])
    pairs, gold = (np.concatenate(parts) for parts in zip(*((part.pairs, part.gold) for part in learnt)))
    return Learnt(values, pairs, gold, np.concatenate(weight))


def train(lists: Sequence[str], names: Sequence[str], learnt: Learnt, pull: float) -> Model:
    """Train both passes from zero: the first on the features, the second on features and pairs; then how two passages
    are chosen. names: of both."""
    n, zero = learnt.values.shape[-1], np.zeros(len(names))
    mean, scale = moments(learnt.values)
    alone = Model(tuple(lists), tuple(names[:n]), mean, scale, zero[:n], zero[:n], zero[:0])
    first = np.append(fit(alone, replace(learnt, pairs=learnt.pairs[..., :0]), pull).weights, zero[n:])
    mean, scale = np.append(mean, zero[n:]), np.append(scale, 1 + zero[n:])
    model = Model(tuple(lists), tuple(names), mean, scale, first, zero, zero[n:])
    mean, scale = moments(model.inputs(*learnt.inputs))
    return join_two(fit(replace(model, mean=mean, scale=scale), learnt, pull), learnt, pull)


def join_two(model: Model, learnt: Learnt, pull: float) -> Model:
    """The model with t of lowest loss: the mean of -log softmax(two) at the twos with most gold candidates, plus the
    penalty of `fit`."""
    near, sums, mutual = pair_sums((model.standard(*learnt.inputs) * model.weights).sum(-1), learnt.pairs)
    one, other = np.triu_indices(near.shape[1], 1)
    gold = np.take_along_axis(learnt.gold, near, 1).astype(int)
    count = gold[:, one] + gold[:, other]
    best = (count == count.max(1, keepdims=True)) & (count > 0)
    used = best.any(1)
    best, x = best[used], np.concatenate([sums[used, :, None], mutual[used]], -1)
    scale, share = np.append(1, x[..., 1:].std((0, 1)) + 1e-9), learnt.weight[used] / learnt.weight[used].sum()
    start = np.append(1, np.zeros(len(scale) - 1))

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        scores = x @ (w / scale)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        every, right = (part / part.sum(1, keepdims=True) for part in (powers, powers * best))
        gradient = np.einsum("qp,qpn->n", (every - right) * share[:, None], x) / scale + pull * (w - start)
        return float(-(share * np.log((every * best).sum(1))).sum() + pull * (w - start) @ (w - start) / 2), gradient

    weights = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}).x / scale
    return replace(model, together=weights[1:] / weights[0])


def moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and standard deviation of each column."""
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    return flat.mean(0), flat.std(0) + 1e-9


def is_even(row: QuestionRow) -> bool:
    """Whether the sha1 of a question's id is even."""
    return sha1(row.question.id.encode(), usedforsecurity=False).digest()[0] % 2 == 0


def score_sets(
    sets: list[Seen], also: list[Seen], lists: tuple[str, ...], half: str, pull: float
) -> list[list[object]]:
    """Rows (mix, set, n, cut-off, ppr, fused, difference, low, high) for each of `sets`, and for all of them together.
    also: further sets to train on."""
    names, parts = columns(lists), []
    for family, name, seen, ppr in sets:
        others = [item for item in (*sets, *also) if item[0] != family]
        model = train(lists, (*names, *PAIRS), join_sets(others, len(names)), pull)
        ours = seen.recall(model.scores(seen.learnt.values[..., : len(names)], seen.learnt.pairs), AT)
        keep = np.array([half == "all" or is_even(row) == (half == "even") for row in seen.rows])
        parts.append((name, ours[keep], ppr[keep]))
    parts.append(("all", np.concatenate([ours for _, ours, _ in parts]), np.concatenate([ppr for *_, ppr in parts])))
    rows: list[list[object]] = []
    for name, ours, ppr in parts:
        for column, k in enumerate(AT):
            pair = paired_difference(ours[:, column], ppr[:, column])
            numbers = (ppr[:, column].mean(), ours[:, column].mean(), pair["diff"], pair["low"], pair["high"])
            rows.append(["+".join(("ppr", *lists)), name, len(ours), k, *(f"{number:.3f}" for number in numbers)])
    return rows


def main() -> None:
    """Load the sets, score both mixes, and write the tables and weights that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="FAMILY:INDEX=QUESTIONS")
    parser.add_argument("--also", nargs="+", default=[], metavar="FAMILY:INDEX=QUESTIONS")
    parser.add_argument("--half", choices=("even", "odd", "all"), default="even")
    parser.add_argument("--pull", type=float, default=0.01)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sets, also = ([load_set(item, options.cache) for item in items] for items in (options.sets, options.also))
    table: list[list[object]] = [["mix", "set", "questions", "k", "ppr", "fused", "difference", "low", "high"]]
    table += [row for lists in MIXES for row in score_sets(sets, also, lists, options.half, options.pull)]
    print("\n".join("\t".join(map(str, row)) for row in table))
    if options.csv:
        with options.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    if options.out:
        document = {}
        for lists in MIXES:
            names = columns(lists)
            model = train(lists, (*names, *PAIRS), join_sets([*sets, *also], len(names)), options.pull)
            document[",".join(lists)] = model.document()
        options.out.write_text(json.dumps(rounded(document), indent=1) + "\n", encoding="utf-8")


def rounded(value: object) -> object:
    """Numbers rounded to six digits; smaller differences of weights do not matter for rankings."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
