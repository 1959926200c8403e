"""A cross-encoder of random weights, made in a second: a folder as transformers and sentence-transformers save it."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

TEXT = "where was the designer of halden bridge born marta orlo engineer in tamsin ves kerling port founded by"
WORDS = TEXT.split()


def cross_encoder(folder: Path, *, classes: int = 1, seed: int = 0, longest: int = 64) -> Path:
    """The folder of a model with `classes` classes that reads pairs of at most `longest` tokens."""
    vocabulary = {word: i for i, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=longest, **names)
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(
        vocab_size=len(vocabulary), max_position_embeddings=longest, num_labels=classes, initializer_range=0.8, **size
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder
