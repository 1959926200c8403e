"""The engine in this process: a model folder through plain transformers, on CPU or one GPU."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gpu_rag.errors import BadInput, ContextOverflow, ModelError, RequestFailed
from gpu_rag.models.device import check_device, choose_dtype, use_threads
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.llm.capability import is_capable
from gpu_rag.models.llm.chat import ChatFormat
from gpu_rag.models.llm.constrain import Grammars, Matcher
from gpu_rag.models.llm.interface import OnReply
from gpu_rag.models.packaged import missing_transformers, quiet_progress
from gpu_rag.models.packed_linear import pack_linear_layers
from gpu_rag.types import Rank, Reply, Request

CODE_VERSION = 1
# On a CPU a step of 16 rows costs hardly more than one of 8: reading the weights dominates.
MAX_BATCH = {"cpu": 16, "cuda": 64}
MAX_BATCH_TOKENS = {"cpu": 16384, "cuda": 131072}
MAX_PREPARED = 1024  # requests sorted into batches at once; each holds its prompt's tokens and its grammar
PREFIX_TOKENS = 8192
# Two texts tokenized apart may need a token more than the two together.
CONTEXT_MARGIN = 8


@dataclass
class _Job:
    """One request on its way. ids: prompt and tail; the head is shared and comes before them."""

    index: int
    request: Request
    head: tuple[int, ...]
    ids: list[int]
    options: list[list[int]] = field(default_factory=list)
    matcher: Matcher | None = None

    @property
    def n_prompt(self) -> int:
        return len(self.head) + len(self.ids)

    @property
    def n_more(self) -> int:
        return max(map(len, self.options)) if self.options else self.request.max_tokens


class TransformersLLM:
    """Replies of a causal language model in this process.

    Requests are grouped by their system text, whose keys and values are computed once and kept (8,192 tokens of them
    in all), sorted by length and run in batches of at most `max_batch` rows and `max_batch_tokens` tokens, prompts
    and replies together. Greedy at temperature 0; above it every request draws from a generator of its own seed and
    attempt. JsonSchema and Choice mask the logits (llguidance), JSON on one line. Rank: mean log-probability per token
    of each option right after the prompt. In bfloat16 a reply may differ from the same request's in another batch:
    where that matters, keep replies (CachedLLM) or replay them.
    Counts: n_prompt all tokens before the reply, template included, plus for Rank all option tokens; n_cached those of
    them whose keys and values were there already.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        content_hash: str,
        capable: bool | None,
        context_tokens: int,
        max_batch: int,
        max_batch_tokens: int,
    ):
        """For a model that is loaded already; `load` does both."""
        from gpu_rag.models.llm.decode import Decoder
        from gpu_rag.models.llm.kv_cache import shares_prefixes

        self.name, self.content_hash = name, content_hash
        self.n_parameters = sum(p.numel() for p in model.parameters())
        self.capable = is_capable(name, self.n_parameters) if capable is None else capable
        self.dtype, self.device = model.dtype, str(model.device)
        pack_linear_layers(model)
        self._chat, self._tokenizer, self._model = ChatFormat(tokenizer), tokenizer, model
        self._limit, self._max_batch, self._max_batch_tokens = context_tokens, max_batch, max_batch_tokens
        self.context_tokens = self._limit - self._chat.overhead() - CONTEXT_MARGIN
        self._eos = _eos_ids(model, tokenizer)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self._eos[0]
        self._decoder = Decoder(model, self._eos, pad)
        self._grammars: Grammars | None = None
        self._shares_prefixes = shares_prefixes(model.config)
        self._prefixes: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        name: str = "",
        device: str = "cpu",
        threads: int = 1,
        capable: bool | None = None,
        dtype: str = "auto",
        max_batch: int | None = None,
        max_batch_tokens: int | None = None,
        context_tokens: int | None = None,
    ) -> TransformersLLM:
        """Load the model in `folder`; nothing is downloaded, no code of the folder is run.

        dtype: auto (bfloat16 where the processor has it), bfloat16, float16, float32. max_batch: 16 on CPU, 64 on a
        GPU. context_tokens: less than the model's own limit, to bound memory. threads: see `device.use_threads`.
        Raises MissingBackend, ModelError, BadInput.
        """
        where = check_device(device)
        for what, value in (("max_batch", max_batch), ("max_batch_tokens", max_batch_tokens)):
            if value is not None and value < 1:
                raise BadInput("a batch needs room", given=f"{what}={value}", expected=">= 1")
        use_threads(where, threads)
        model, tokenizer = _load(folder, choose_dtype(where, dtype), where)
        own = int(model.config.get_text_config().max_position_embeddings)
        return cls(
            model,
            tokenizer,
            name=name or str(folder),
            content_hash=folder_hash(folder, CODE_VERSION),
            capable=capable,
            context_tokens=min(own, context_tokens or own),
            max_batch=max_batch or MAX_BATCH[where.type],
            max_batch_tokens=max_batch_tokens or MAX_BATCH_TOKENS[where.type],
        )

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` as a prompt."""
        return len(self._chat.prompt_ids([text])[0])

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order. Raises ModelError when the device has no memory left for a batch."""
        replies: list[Reply | RequestFailed | None] = [None] * len(requests)

        def done(i: int, reply: Reply | RequestFailed) -> None:
            replies[i] = reply
            if on_reply is not None:
                on_reply(i, reply)

        with self._lock:
            for start in range(0, len(requests), MAX_PREPARED):
                self._complete(start, requests[start : start + MAX_PREPARED], done)
        return [reply for reply in replies if reply is not None]

    def _complete(self, start: int, requests: Sequence[Request], done: OnReply) -> None:
        jobs = []
        for i, job in enumerate(self._jobs(start, requests), start):
            if isinstance(job, _Job):
                jobs.append(job)
            else:
                done(i, job)
        for batch in self._batches(jobs):
            for job, reply in zip(batch, self._run(batch), strict=True):
                done(job.index, reply)

    def close(self) -> None:
        """Drop the model and all that was kept of prompts."""
        self._prefixes.clear()
        self._model = self._decoder = self._grammars = None  # type: ignore[assignment]

    def _jobs(self, start: int, requests: Sequence[Request]) -> Iterator[_Job | RequestFailed]:
        prompts = self._chat.prompt_ids([request.prompt for request in requests])
        for i, (request, ids) in enumerate(zip(requests, prompts, strict=True), start):
            job = _Job(i, request, self._chat.head_ids(request.system), [*ids, *self._chat.tail_ids])
            yield self._refusal(job) or job

    def _refusal(self, job: _Job) -> RequestFailed | None:
        """Complete the job with its options or matcher; why it cannot run, or None."""
        constraint = job.request.constraint
        if not job.ids:
            return RequestFailed("an empty prompt", expected="some text")
        if isinstance(constraint, Rank):
            job.options = self._chat.prompt_ids(constraint.options)
            if not all(job.options):
                return RequestFailed("an option without tokens", given=constraint.options, expected="some text in each")
        if job.n_prompt + job.n_more > self._limit:
            given = f"{job.n_prompt} prompt and {job.n_more} reply tokens"
            do = "shorten the prompt or lower max_tokens"
            return ContextOverflow("the prompt does not fit", given=given, expected=f"<= {self._limit} in all", do=do)
        if constraint is not None and not isinstance(constraint, Rank):
            if self._grammars is None:
                self._grammars = Grammars(self._tokenizer, int(self._model.config.vocab_size), self._eos)
            matcher = self._grammars.matcher(constraint)
            if isinstance(matcher, RequestFailed):
                return matcher
            job.matcher = matcher
        return None

    def _batches(self, jobs: list[_Job]) -> Iterator[list[_Job]]:
        """Jobs of one head and one kind, shortest first, within both limits; a job too large for them runs alone."""
        groups: dict[tuple[tuple[int, ...], bool], list[_Job]] = {}
        for job in jobs:
            groups.setdefault((job.head, bool(job.options)), []).append(job)
        for group in groups.values():
            batch: list[_Job] = []
            for job in sorted(group, key=lambda j: (len(j.ids), j.index)):
                tokens = job.n_prompt + max(j.n_more for j in [*batch, job])
                if batch and (len(batch) >= self._max_batch or (len(batch) + 1) * tokens > self._max_batch_tokens):
                    yield batch
                    batch = []
                batch.append(job)
            yield batch

    def _run(self, batch: list[_Job]) -> list[Reply | RequestFailed]:
        try:
            n_prefix, prefix, n_known = self._prefix(batch[0].head)
            ids = [job.ids if n_prefix else [*job.head, *job.ids] for job in batch]
            cached = [n_known if k == 0 else n_prefix for k in range(len(batch))]
            if batch[0].options:
                return self._rank(batch, ids, cached, n_prefix, prefix)
            return self._generate(batch, ids, cached, n_prefix, prefix)
        except torch.OutOfMemoryError as error:
            given = f"a batch of {len(batch)} requests"
            raise ModelError("the device ran out of memory", given=given, do="lower max_batch_tokens") from error

    def _generate(
        self, batch: list[_Job], ids: list[list[int]], cached: list[int], n_prefix: int, prefix: Any
    ) -> list[Reply | RequestFailed]:
        from gpu_rag.models.llm.decode import Row

        rows = []
        for job, row_ids in zip(batch, ids, strict=True):
            r = job.request
            rows.append(Row(row_ids, r.max_tokens, r.temperature, r.seed, r.attempt, job.matcher))
        self._decoder.generate(rows, n_prefix, prefix)
        replies: list[Reply | RequestFailed] = []
        for job, row, n_cached in zip(batch, rows, cached, strict=True):
            if row.finish == "failed":
                replies.append(RequestFailed("the constraint stopped the reply", given=row.error))
                continue
            text = self._tokenizer.decode(row.out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            replies.append(Reply(text, row.finish, job.n_prompt, n_cached, len(row.out)))
        return replies

    def _rank(
        self, batch: list[_Job], ids: list[list[int]], cached: list[int], n_prefix: int, prefix: Any
    ) -> list[Reply | RequestFailed]:
        all_scores = self._decoder.rank(ids, [job.options for job in batch], self._max_batch, n_prefix, prefix)
        replies: list[Reply | RequestFailed] = []
        for job, scores, n_cached in zip(batch, all_scores, cached, strict=True):
            best = max(range(len(scores)), key=scores.__getitem__)
            text = job.request.constraint.options[best]  # type: ignore[union-attr]
            n_prompt = job.n_prompt + sum(map(len, job.options))
            replies.append(Reply(text, "rank", n_prompt, n_cached, 0, tuple(scores)))
        return replies

    def _prefix(self, head: tuple[int, ...]) -> tuple[int, Any, int]:
        """(length, keys and values, how many of its tokens were known before) of a head; all 0 where none is kept."""
        if not head or not self._shares_prefixes or len(head) > PREFIX_TOKENS:
            return 0, None, 0
        known = head in self._prefixes
        if not known:
            self._prefixes[head] = self._decoder.prefix(head)
        self._prefixes.move_to_end(head)
        while sum(map(len, self._prefixes)) > PREFIX_TOKENS:
            self._prefixes.popitem(last=False)
        return len(head), self._prefixes[head], len(head) if known else 0


def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any]:
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from gpu_rag.models.llm.kv_cache import register_cpu_attention
    except ImportError as error:
        raise missing_transformers(error) from error
    attention = register_cpu_attention() if device.type == "cpu" else "sdpa"
    try:
        with quiet_progress():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation=attention, local_files_only=True
            )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError("the language model could not be loaded", given=f"{folder}: {error}") from error
    return model.to(device).eval(), tokenizer


def _eos_ids(model: Any, tokenizer: Any) -> list[int]:
    own = model.generation_config.eos_token_id
    ids = list(own) if isinstance(own, (list, tuple)) else [own]
    found = sorted({int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None})
    if not found:
        raise ModelError("the model has no token that ends a reply", given="no eos_token_id")
    return found
