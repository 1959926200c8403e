"""A byte-level tokenizer, trained in a moment on texts of the test."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of `size` tokens; <|e|> ends and pads a turn, <|s|> starts it."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<|e|>", "<|s|>"], initial_alphabet=alphabet)
    raw.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|e|>", pad_token="<|e|>")
