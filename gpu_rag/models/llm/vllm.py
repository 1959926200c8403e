"""vLLM in this process (or a child of it): continuous batching, prefix caching, one GPU, several, or the CPU."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gpu_rag.errors import GpuRagError, RequestFailed
from gpu_rag.models.fingerprint import folder_hash
from gpu_rag.models.llm.capability import is_capable, parameters_in_name, stored_parameters
from gpu_rag.models.llm.chat import ChatFormat, Prompted
from gpu_rag.models.llm.interface import OnReply, ServerAccount, check_key, in_order, on_growth, ranked, sampling_seed
from gpu_rag.models.llm.service import StreamingEngine
from gpu_rag.models.llm.vllm_engine import VllmEngine, places, window
from gpu_rag.models.llm.vllm_jobs import Generation, Job, Piece, Ranking
from gpu_rag.models.llm.vllm_service import EnginePool, Placed
from gpu_rag.models.pretrained import load_tokenizer
from gpu_rag.settings.sections import VllmSettings
from gpu_rag.types import Rank, Reply, Request

CODE_VERSION = 2
# Prompts tokenized at once: the engine begins with the first while the next are tokenized.
TOKENIZE = 64

_Item = tuple[int, Request, "Job | None", "GpuRagError | None"]


class VllmLLM(StreamingEngine[_Item, "Placed | None"]):
    """Replies of a causal language model through vLLM's synchronous engine, which one thread drives.

    Requests are admitted while others run and each reply is handed out as it finishes, by `complete` and by `submit` /
    `poll` alike. Prompts are made as the transformers backend makes them, so head, prompt and tail of a stage's
    requests are equal token by token and share the prefix cache; thinking modes are off. JsonSchema (on one line) and
    Choice by structured outputs. Rank: mean log-probability per token of each option right after the prompt, which is
    computed once, see `vllm_jobs.Ranking`. Greedy at temperature 0; above it every request draws by its own seed and
    attempt. In bfloat16 a reply may differ from the same request's in another batch: keep replies (CachedLLM), or
    start with VLLM_BATCH_INVARIANT=1 where the GPU has it.
    Counts: n_prompt all tokens before the reply, template included, plus for Rank all option tokens; n_cached those
    that the prefix cache had.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "",
        device: str = "cpu",
        threads: int = 1,
        capable: bool | None = None,
        settings: VllmSettings | None = None,
    ):
        """Start the engines for the model in `folder`; nothing is downloaded, no code of the folder is run.

        device: cpu, or cuda for one engine on each GPU that this process sees (or on each `tensor_parallel` of them),
        also for cuda:N, which then names the GPU of other work. threads: of a CPU engine in this process.
        Raises MissingBackend (no vllm), UsageError, ModelError (the engine does not start).
        """
        super().__init__()
        chosen, kind = settings or VllmSettings(), device.partition(":")[0]
        self._tokenizer = load_tokenizer(folder)
        n_parameters = parameters_in_name(folder.name) or stored_parameters(folder)
        engines: list[VllmEngine] = []

        def build(gpus: str) -> VllmEngine:
            engines[:] = [VllmEngine(folder, chosen, device=kind, threads=threads, gpus=gpus)]
            return engines[0]

        builds = [partial(build, gpus) for gpus in places(chosen, kind)]
        self._service = EnginePool(builds, window=window(chosen, kind), restarts=chosen.restarts)
        is_dummy = chosen.load_format == "dummy"
        about = {"engine": "vllm", "dtype": engines[0].dtype, "random_weights": [chosen.seed] if is_dummy else []}
        self.name = name or str(folder)
        self.content_hash = folder_hash(folder, CODE_VERSION, about, need_weights=not is_dummy)
        self.capable = is_capable(folder.name, n_parameters) if capable is None else capable
        self._chat, self._limit = ChatFormat(self._tokenizer), engines[0].max_model_len
        self.context_tokens = self._chat.context_tokens(self._limit)
        self._lock = threading.Lock()  # a fast tokenizer is not safe to share

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` as a prompt."""
        with self._lock:
            return len(self._chat.prompt_ids([text])[0])

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order. Raises ModelError when the engine is dead for good."""
        finished: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        tickets: list[Placed] = []
        try:
            for start in range(0, len(requests), TOKENIZE):
                some = requests[start : start + TOKENIZE]
                for i, (request, job) in enumerate(zip(some, self._jobs(some), strict=True), start):
                    tickets += self._hand_over(i, request, job, finished)
            return in_order(len(requests), (self._read(finished.get()) for _ in requests), on_reply)
        finally:  # a caller that was interrupted leaves nothing behind in the engine
            for ticket in tickets:
                if not ticket.over:
                    self._service.abort(ticket)

    # --- the streaming face ---

    def submit(self, key: int, request: Request) -> None:
        """Hand over a request; returns at once. Raises UsageError for a key that is open."""
        check_key(key, self._open)
        [job] = self._jobs([request])
        tickets = self._hand_over(key, request, job, self._finished)
        self._open[key] = tickets[0] if tickets else None

    def abort(self, key: int) -> None:
        """Give up a request; a key that is not open is ignored."""
        ticket = self._open.get(key)
        if ticket is not None:
            self._service.abort(ticket)

    def accounts(self) -> list[ServerAccount]:
        """What each engine did; a ranking of options is one request of several prompts."""
        return self._service.accounts()

    def sleep(self) -> None:
        """Free the memory of the GPUs until the next request, with `enable_sleep_mode` among vllm.arguments."""
        self._service.sleep()

    def close(self) -> None:
        """Give up what is open and stop the engine."""
        self._service.close()
        self._open.clear()

    # --- requests to jobs, jobs to replies ---

    def _hand_over(
        self, key: int, request: Request, job: Job | RequestFailed, finished: queue.SimpleQueue[_Item]
    ) -> list[Placed]:
        """Submit a job, or hand out at once why there is none."""
        if isinstance(job, RequestFailed):
            finished.put((key, request, None, job))
            return []
        return [self._service.submit(job, lambda error: finished.put((key, request, job, error)))]

    def _jobs(self, requests: Sequence[Request]) -> list[Job | RequestFailed]:
        with self._lock:
            return [self._job(prompted) for prompted in self._chat.prompted(requests, self._limit)]

    def _job(self, prompted: Prompted | RequestFailed) -> Job | RequestFailed:
        if isinstance(prompted, RequestFailed):
            return prompted
        request, ids = prompted.request, (*prompted.head, *prompted.ids)
        if prompted.options:
            return Ranking(ids, prompted.options)
        assert not isinstance(request.constraint, Rank)
        seed = sampling_seed(request.seed, request.attempt)
        on_ids = None if request.on_text is None else on_growth(self._decoded, request.on_text)
        return Generation(Piece(ids, request.max_tokens, request.temperature, seed, request.constraint, (), on_ids))

    def _read(self, item: _Item) -> tuple[int, Reply | RequestFailed]:
        """The reply of a job that ended. Raises ModelError for one that ended with its engine."""
        key, request, job, error = item
        if isinstance(error, RequestFailed):
            return key, error
        if error is not None:
            raise error
        if isinstance(job, Ranking):
            assert isinstance(request.constraint, Rank)
            n_prompt = len(job.prompt) + sum(map(len, job.options))
            return key, ranked(request.constraint.options, job.scores(), n_prompt, job.n_cached)
        assert isinstance(job, Generation)
        return key, self._generated(job)

    def _generated(self, job: Generation) -> Reply | RequestFailed:
        finished = job.result
        assert finished is not None
        if finished.finish_reason not in ("stop", "length"):
            given = f"finish_reason={finished.finish_reason!r}"
            return RequestFailed("the engine ended the reply", given=given, expected="stop or length")
        ids = list(finished.ids)
        if ids and ids[-1] in self._tokenizer.all_special_ids:  # the end token
            ids.pop()
        return Reply(self._decoded(ids), finished.finish_reason, len(job.piece.ids), finished.n_cached, len(ids))

    def _decoded(self, ids: Sequence[int]) -> str:
        with self._lock:
            text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
