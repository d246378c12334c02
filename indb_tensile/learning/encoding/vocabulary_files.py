"""Makes a tokenizer of the vocabulary files of a network that comes without a tokenizer.json."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from indb_tensile.errors import RequestError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCABULARY_FILES = {
    "bert": ("vocab.txt",),
    "distilbert": ("vocab.txt",),
    "roberta": ("vocab.json", "merges.txt"),
    "gpt2": ("vocab.json", "merges.txt"),
}
_HINT = "Save the tokenizer beside the network, which writes tokenizer.json: tokenizer.save_pretrained(...)."


def tokenizer_of_vocabulary(family: str, texts: Sequence[str], options: Any, subject: str) -> "Tokenizer":
    """Return the tokenizer of a family for the texts of its vocabulary files, in the order of VOCABULARY_FILES.

    `options` is the content of tokenizer_config.json. Raises RequestError for files that are no vocabulary.
    """
    if not isinstance(options, Mapping):
        raise RequestError(f"tokenizer_config.json of {subject} is no JSON object", hint=_HINT)
    if len(texts) == 1:
        return _word_pieces(texts[0], options, subject)
    return _byte_pairs(family, texts[0], texts[1], subject)


def _word_pieces(text: str, options: Mapping[str, Any], subject: str) -> "Tokenizer":
    """Return BERT's tokenizer: words in pieces, between [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    lines = text.split("\n")
    vocabulary = {piece: number for number, piece in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    first, last = (_token(vocabulary, name, subject) for name in ("[CLS]", "[SEP]"))
    _token(vocabulary, "[UNK]", subject)
    lowercase = options.get("do_lower_case", True) is not False
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))  # noqa: S106 - a piece of words
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", last), ("[CLS]", first))
    return tokenizer


def _byte_pairs(family: str, vocabulary_text: str, merges_text: str, subject: str) -> "Tokenizer":
    """Return GPT-2's tokenizer of bytes; that of RoBERTa is between <s> and </s>."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    try:
        vocabulary = json.loads(vocabulary_text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"vocab.json of {subject} is no valid JSON: {error}", hint=_HINT) from error
    if not isinstance(vocabulary, dict) or not all(
        isinstance(number, int) and 0 <= number < 1 << 31 for number in vocabulary.values()
    ):
        raise RequestError(f"vocab.json of {subject} is no object of pieces with their numbers", hint=_HINT)
    lines = [line.split(" ") for line in merges_text.split("\n") if line and not line.startswith("#version")]
    merges = [(pair[0], pair[1]) for pair in lines if len(pair) == 2]
    if len(merges) != len(lines) or any(
        piece not in vocabulary for left, right in merges for piece in (left, right, left + right)
    ):
        message = f"merges.txt of {subject} has a line that is no pair of pieces of vocab.json"
        raise RequestError(message, hint=_HINT)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if family == "roberta":
        first, last = (_token(vocabulary, name, subject) for name in ("<s>", "</s>"))
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", last), ("<s>", first), add_prefix_space=False
        )
    return tokenizer


def _token(vocabulary: Mapping[str, int], name: str, subject: str) -> int:
    if name not in vocabulary:
        raise RequestError(f"the vocabulary of {subject} lacks the piece {name}", hint=_HINT)
    return vocabulary[name]
