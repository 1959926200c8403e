"""Engine in this process: a model folder through plain transformers, on CPU or one GPU."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gpu_rag.errors import ModelError, RequestFailed
from gpu_rag.models.device import check_device, choose_dtype, pack_linear_layers, room_for, use_threads
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.llm.capability import is_capable
from gpu_rag.models.llm.chat import ChatFormat, Prompted
from gpu_rag.models.llm.constrain import Grammars, Matcher
from gpu_rag.models.llm.interface import OnReply, in_order, on_growth, ranked
from gpu_rag.models.pretrained import load_model, load_tokenizer, needing_transformers
from gpu_rag.types import Choice, JsonSchema, Rank, Reply, Request

CODE_VERSION = 1
# On a CPU a step of 16 rows costs little more than one of 8, because reading the weights dominates.
MAX_BATCH = {"cpu": 16, "cuda": 64}
MAX_BATCH_TOKENS = {"cpu": 16384, "cuda": 131072}
MAX_PREPARED = 1024  # requests sorted into batches at once; each holds its prompt's tokens and its grammar
PREFIX_TOKENS = 8192
NO_ROOM = "use a smaller model, or --set models.device=cpu"


class _Job(NamedTuple):
    """One request on its way through the engine."""

    place: int
    prompted: Prompted
    matcher: Matcher | None


class TransformersLLM:
    """Replies of a causal language model in this process.

    Requests are grouped by their system text, whose keys and values are computed once and kept (8,192 tokens in all).
    They are sorted by length and run in batches of at most `max_batch` rows and MAX_BATCH_TOKENS tokens, prompts and
    replies together. Decoding is greedy at temperature 0; above it every request draws from a generator of its own seed
    and attempt. JsonSchema and Choice mask the logits (llguidance), JSON on one line. Rank: mean log-probability per
    token of each option right after the prompt. In bfloat16 a reply may depend on the batch: if that matters, keep
    replies (CachedLLM) or replay them. Counts: n_prompt: all tokens before the reply, template included, plus all
    option tokens for Rank; n_cached: tokens whose keys and values were already computed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "",
        device: str = "cpu",
        threads: int = 1,
        capable: bool | None = None,
        dtype: str = "auto",
        max_batch: int | None = None,
        context_tokens: int | None = None,
    ):
        """Load the model in `folder`; downloads nothing and runs no code of the folder.

        dtype: auto (bfloat16 if the processor has it), bfloat16, float16, float32. max_batch: 16 on CPU, 64 on a GPU.
        context_tokens: less than the model's own limit, to bound memory. threads: see `device.use_threads`.
        Raises MissingBackend, ModelError, BadInput.
        """
        where = check_device(device)
        use_threads(where, threads)
        options = {"dtype": choose_dtype(where, dtype), "attn_implementation": _attention(where)}
        self._tokenizer = load_tokenizer(folder)
        self._model: Any = load_model("language", "AutoModelForCausalLM", folder, where, NO_ROOM, **options)
        from gpu_rag.models.llm.decode import Decoder  # imports transformers, like the next line
        from gpu_rag.models.llm.kv_cache import shares_prefixes

        self.name, self.content_hash = name or str(folder), folder_hash(folder, CODE_VERSION)
        self.n_parameters = sum(p.numel() for p in self._model.parameters())
        self.capable = is_capable(self.name, self.n_parameters) if capable is None else capable
        self.dtype, self.device = self._model.dtype, str(self._model.device)
        pack_linear_layers(self._model)
        self._chat = ChatFormat(self._tokenizer)
        own = int(self._model.config.get_text_config().max_position_embeddings)
        self._limit = min(own, context_tokens or own)
        self._max_batch, self._max_batch_tokens = max_batch or MAX_BATCH[where.type], MAX_BATCH_TOKENS[where.type]
        self.context_tokens = self._chat.context_tokens(self._limit)
        self._eos = _eos_ids(self._model, self._tokenizer)
        pad = self._tokenizer.pad_token_id
        self._decoder = Decoder(self._model, self._eos, self._eos[0] if pad is None else pad)
        self._grammars: Grammars | None = None
        self._shares_prefixes = shares_prefixes(self._model.config)
        self._prefixes: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._lock = threading.Lock()

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` as a prompt."""
        return len(self._chat.prompt_ids([text])[0])

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order. Raises ModelError when the device has no memory left for a batch."""
        with self._lock:
            return in_order(len(requests), self._replies(requests), on_reply)

    def _replies(self, requests: Sequence[Request]) -> Iterator[tuple[int, Reply | RequestFailed]]:
        for start in range(0, len(requests), MAX_PREPARED):
            jobs = []
            prompts = self._chat.prompted(requests[start : start + MAX_PREPARED], self._limit)
            for i, prompted in enumerate(prompts, start):
                matcher = self._matcher(prompted)
                if isinstance(prompted, RequestFailed):
                    yield i, prompted
                elif isinstance(matcher, RequestFailed):
                    yield i, matcher
                else:
                    jobs.append(_Job(i, prompted, matcher))
            for batch in self._batches(jobs):
                yield from zip([job.place for job in batch], self._run(batch), strict=True)

    def close(self) -> None:
        """Drop the model and all cached prefixes."""
        self._prefixes.clear()
        self._model = self._decoder = self._grammars = None  # type: ignore[assignment]

    def _matcher(self, prompted: Prompted | RequestFailed) -> Matcher | RequestFailed | None:
        """Matcher of a request with a schema or a choice, or the reason why there is none; None for other requests."""
        if isinstance(prompted, RequestFailed) or not isinstance(prompted.request.constraint, (JsonSchema, Choice)):
            return None
        if self._grammars is None:
            self._grammars = Grammars(self._tokenizer, int(self._model.config.vocab_size), self._eos)
        return self._grammars.matcher(prompted.request.constraint)

    def _batches(self, jobs: list[_Job]) -> Iterator[list[_Job]]:
        """Batches of jobs with one head and one kind, shortest first, within both limits; a larger job runs alone."""
        groups: dict[tuple[tuple[int, ...], bool], list[_Job]] = {}
        for job in jobs:
            groups.setdefault((job.prompted.head, bool(job.prompted.options)), []).append(job)
        for group in groups.values():
            batch: list[_Job] = []
            for job in sorted(group, key=lambda j: (len(j.prompted.ids), j.place)):
                tokens = job.prompted.n_prompt + max(j.prompted.n_more for j in [*batch, job])
                if batch and (len(batch) >= self._max_batch or (len(batch) + 1) * tokens > self._max_batch_tokens):
                    yield batch
                    batch = []
                batch.append(job)
            yield batch

    def _run(self, batch: list[_Job]) -> list[Reply | RequestFailed]:
        prompts = [job.prompted for job in batch]
        with room_for(f"a batch of {len(batch)} requests", "lower models.max_batch"):
            n_prefix, prefix, n_known = self._prefix(prompts[0].head)
            ids = [prompt.ids if n_prefix else [*prompt.head, *prompt.ids] for prompt in prompts]
            cached = [n_known, *[n_prefix] * (len(batch) - 1)]
            if prompts[0].options:
                return self._rank(prompts, ids, cached, n_prefix, prefix)
            return self._generate(batch, ids, cached, n_prefix, prefix)

    def _generate(
        self, batch: list[_Job], ids: list[list[int]], cached: list[int], n_prefix: int, prefix: Any
    ) -> list[Reply | RequestFailed]:
        from gpu_rag.models.llm.decode import Row

        rows = []
        for job, row_ids in zip(batch, ids, strict=True):
            r = job.prompted.request
            on_ids = None if r.on_text is None else on_growth(self._decoded, r.on_text)
            rows.append(Row(row_ids, r.max_tokens, r.temperature, r.seed, r.attempt, job.matcher, on_ids))
        self._decoder.generate(rows, n_prefix, prefix)
        replies: list[Reply | RequestFailed] = []
        for job, row, n_cached in zip(batch, rows, cached, strict=True):
            if row.finish == "failed":
                replies.append(RequestFailed("the constraint stopped the reply", given=row.error))
                continue
            replies.append(Reply(self._decoded(row.out), row.finish, job.prompted.n_prompt, n_cached, len(row.out)))
        return replies

    def _decoded(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _rank(
        self, prompts: list[Prompted], ids: list[list[int]], cached: list[int], n_prefix: int, prefix: Any
    ) -> list[Reply | RequestFailed]:
        all_scores = self._decoder.rank(ids, [prompt.options for prompt in prompts], self._max_batch, n_prefix, prefix)
        replies: list[Reply | RequestFailed] = []
        for prompt, scores, n_cached in zip(prompts, all_scores, cached, strict=True):
            assert isinstance(prompt.request.constraint, Rank)
            n_prompt = prompt.n_prompt + sum(map(len, prompt.options))
            replies.append(ranked(prompt.request.constraint.options, scores, n_prompt, n_cached))
        return replies

    def _prefix(self, head: tuple[int, ...]) -> tuple[int, Any, int]:
        """(length, keys and values, number of tokens cached before) of a head; (0, None, 0) if none is cached."""
        if not head or not self._shares_prefixes or len(head) > PREFIX_TOKENS:
            return 0, None, 0
        known = head in self._prefixes
        if not known:
            self._prefixes[head] = self._decoder.prefix(head)
        self._prefixes.move_to_end(head)
        while sum(map(len, self._prefixes)) > PREFIX_TOKENS:
            self._prefixes.popitem(last=False)
        return len(head), self._prefixes[head], len(head) if known else 0


def _attention(device: torch.device) -> str:
    """Name of the attention implementation of the model. Raises MissingBackend."""
    if device.type != "cpu":
        return "sdpa"
    with needing_transformers():
        from gpu_rag.models.llm.kv_cache import register_cpu_attention
    return register_cpu_attention()


def _eos_ids(model: Any, tokenizer: Any) -> list[int]:
    own = model.generation_config.eos_token_id
    ids = list(own) if isinstance(own, (list, tuple)) else [own]
    tokens = sorted({int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None})
    if not tokens:
        raise ModelError("the model has no token that ends a reply", given="no eos_token_id")
    return tokens
