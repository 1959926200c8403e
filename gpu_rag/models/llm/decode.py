"""Decoding loop: batches of token ids in, generated ids or option scores out. It handles tensors, not text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpu_rag.models.llm.constrain import Matcher
from gpu_rag.models.llm.interface import sampling_seed
from gpu_rag.models.llm.kv_cache import Prefix, as_prefix, new_cache, select_rows

# Bounds the logits of option tokens in memory (512 x 50,000 floats are 100 MB).
RANK_TILE_TOKENS = 512


@dataclass
class Row:
    """One sequence to generate. ids: the prompt after the shared prefix, at least one token.

    out: generated ids without the end token; finish: "" while running, then stop, length, or failed with `error`.
    on_ids: called with `out` as it grows.
    """

    ids: list[int]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    attempt: int = 0
    matcher: Matcher | None = None
    on_ids: Callable[[list[int]], None] | None = None
    out: list[int] = field(default_factory=list)
    finish: str = ""
    error: str = ""
    generator: torch.Generator | None = None


@dataclass
class _Prefilled:
    """A batch after its prompts. mask: 0 or 1, i64[B, n] so far; position: i64[B], of each row's next token."""

    cache: Any
    mask: torch.Tensor
    position: torch.Tensor
    logits: torch.Tensor


class Decoder:
    """Greedy or sampled decoding of a causal model, with left padding and a shared, precomputed prefix."""

    def __init__(self, model: Any, eos_ids: Sequence[int], pad_id: int):
        self._model, self._eos, self._pad = model, frozenset(eos_ids), pad_id
        self._device = model.device

    def prefix(self, ids: Sequence[int]) -> Prefix:
        """Keys and values of a prefix that many prompts share."""
        with torch.inference_mode():
            cache = new_cache(self._model.config, 1, len(ids))
            tokens = torch.tensor([list(ids)], device=self._device)
            self._model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return as_prefix(cache)

    def generate(self, rows: Sequence[Row], n_prefix: int = 0, prefix: Prefix | None = None) -> None:
        """Fill `out` and `finish` of every row. The batch shrinks when half of its rows have finished."""
        longest = max(row.max_tokens for row in rows)
        with torch.inference_mode():
            state = self._prefill([row.ids for row in rows], n_prefix, prefix, longest)
            active = list(rows)
            while True:
                tokens = self._next_tokens(active, state.logits)
                running = [i for i, row in enumerate(active) if not row.finish]
                if not running:
                    return
                if 2 * len(running) <= len(active):
                    state.cache = select_rows(state.cache, running)
                    state.mask, state.position = state.mask[running], state.position[running]
                    active, tokens = [active[i] for i in running], [tokens[i] for i in running]
                self._step(state, tokens)

    def rank(
        self,
        prompts: Sequence[list[int]],
        options: Sequence[Sequence[list[int]]],
        tile: int,
        n_prefix: int = 0,
        prefix: Prefix | None = None,
    ) -> list[list[float]]:
        """Mean log-probability per token of each option after its prompt.

        Every prompt is computed once, in one batch; the options follow in tiles of at most `tile` rows that reuse the
        prompts' keys and values. options[i][j]: at least one token.
        """
        longest = max(len(ids) for own in options for ids in own)
        pairs = [(i, j) for i, own in enumerate(options) for j in range(len(own))]
        with torch.inference_mode():
            state = self._prefill(prompts, n_prefix, prefix, longest)
            first = torch.log_softmax(state.logits.float(), dim=-1)
            sums = [[float(first[i, ids[0]]) for ids in own] for i, own in enumerate(options)]
            pairs = [(i, j) for i, j in pairs if len(options[i][j]) > 1]
            rows = max(1, min(tile, RANK_TILE_TOKENS // max(1, longest)))
            for start in range(0, len(pairs), rows):
                some_pairs = pairs[start : start + rows]
                totals = self._continuations(state, [i for i, _ in some_pairs], [options[i][j] for i, j in some_pairs])
                for (i, j), total in zip(some_pairs, totals, strict=True):
                    sums[i][j] += total
        return [[s / len(ids) for s, ids in zip(row, own, strict=True)] for row, own in zip(sums, options, strict=True)]

    def _prefill(self, prompts: Sequence[list[int]], n_prefix: int, prefix: Prefix | None, n_more: int) -> _Prefilled:
        length = max(len(ids) for ids in prompts)
        tokens = torch.full((len(prompts), length), self._pad, dtype=torch.long)
        mask = torch.ones((len(prompts), n_prefix + length), dtype=torch.long)
        for row, ids in enumerate(prompts):
            tokens[row, length - len(ids) :] = torch.tensor(ids)
            mask[row, n_prefix : n_prefix + length - len(ids)] = 0
        position = (mask.cumsum(1) - 1).clamp(min=0)[:, n_prefix:]
        tokens, mask, position = (t.to(self._device) for t in (tokens, mask, position))
        cache = new_cache(self._model.config, len(prompts), n_prefix + length + n_more, prefix)
        logits = self._forward(tokens, mask, position, cache, 1)[:, -1]
        return _Prefilled(cache, mask, position[:, -1] + 1, logits)

    def _step(self, state: _Prefilled, tokens: list[int]) -> None:
        ones = state.mask.new_ones((len(tokens), 1))
        state.mask = torch.cat([state.mask, ones], dim=1)
        column = torch.tensor(tokens, device=self._device).unsqueeze(1)
        state.logits = self._forward(column, state.mask, state.position.unsqueeze(1), state.cache, 1)[:, -1]
        state.position = state.position + 1

    def _continuations(self, state: _Prefilled, rows: list[int], options: list[list[int]]) -> list[float]:
        """Sum of the log-probabilities of the second and later tokens of each option."""
        length = max(len(ids) for ids in options) - 1
        tokens = torch.full((len(rows), length), self._pad, dtype=torch.long)
        targets = torch.zeros((len(rows), length), dtype=torch.long)
        counts = torch.zeros((len(rows), length), dtype=torch.float64)
        for row, ids in enumerate(options):
            tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
            targets[row, : len(ids) - 1] = torch.tensor(ids[1:])
            counts[row, : len(ids) - 1] = 1.0
        tokens, targets = tokens.to(self._device), targets.to(self._device)
        mask = torch.cat([state.mask[rows], state.mask.new_ones((len(rows), length))], dim=1)
        position = state.position[rows].unsqueeze(1) + torch.arange(length, device=self._device)
        logits = self._forward(tokens, mask, position, select_rows(state.cache, rows), 0)
        log_probs = torch.log_softmax(logits.float(), dim=-1).gather(2, targets.unsqueeze(2)).squeeze(2)
        return [float(s) for s in (log_probs.double().cpu() * counts).sum(1)]

    def _forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, position: torch.Tensor, cache: Any, keep: int
    ) -> torch.Tensor:
        out = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        return out.logits

    def _next_tokens(self, rows: list[Row], logits: torch.Tensor) -> list[int]:
        """Choose and record one token per row. Finished rows get the pad token, which nothing reads."""
        greedy = logits.argmax(dim=-1).tolist()
        tokens = []
        for i, row in enumerate(rows):
            if row.finish:
                tokens.append(self._pad)
                continue
            plain = row.matcher is None and row.temperature <= 0
            token = greedy[i] if plain else _choose(row, logits[i].float().cpu())
            self._record(row, token)
            tokens.append(token if token >= 0 else self._pad)
        return tokens

    def _record(self, row: Row, token: int) -> None:
        if token < 0:
            row.finish = "failed"
            return
        if token in self._eos:
            row.finish = "stop"
            return
        row.out.append(token)
        if row.on_ids is not None:
            row.on_ids(row.out)
        if row.matcher is not None and row.matcher.take(token):
            row.error = row.matcher.error()
            row.finish = "failed" if row.error else "stop"
        elif len(row.out) >= row.max_tokens:
            row.finish = "length"


def _choose(row: Row, logits: torch.Tensor) -> int:
    """Next token under the row's constraint and temperature, or -1 when the constraint allows none."""
    if row.matcher is not None:
        allowed = row.matcher.allowed(logits.shape[0])
        if not bool(allowed.any()):
            row.error = row.matcher.error() or "the constraint allows no token"
            return -1
        logits = logits.masked_fill(~allowed, float("-inf"))
    if row.temperature <= 0:
        return int(logits.argmax())
    if row.generator is None:
        row.generator = torch.Generator().manual_seed(sampling_seed(row.seed, row.attempt))
    cumulative = torch.softmax(logits.double() / row.temperature, dim=0).cumsum(0)
    draw = torch.rand((), generator=row.generator, dtype=torch.float64) * cumulative[-1]
    place = int(torch.searchsorted(cumulative, draw, right=True))
    return place if place < logits.shape[0] else int(logits.argmax())
