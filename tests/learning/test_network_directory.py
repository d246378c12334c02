"""A directory of a pretrained network is checked in every respect before anything of it is registered."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from indb_tensile.bench.harness.networks.tiny_networks import tiny_network, write_directory
from indb_tensile.errors import RequestError
from indb_tensile.learning.models.artifacts import pack
from indb_tensile.learning.networks.network_directory import NetworkDirectory
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.networks.tensorstream import TensorSpec
from indb_tensile.request.pretrained_rules import FAMILIES

WORDS = ("server", "query", "music", "player")


def read(directory: Path) -> RegisteredNetwork:
    """Return the network as it is registered and loaded."""
    with NetworkDirectory(directory) as opened:
        weights = b"".join(opened.weights())
        assert len(weights) == opened.weights_digest[1]
        config = {**opened.sizes.stored(), "family": opened.sizes.family}
        return RegisteredNetwork.of_stored("n", opened.digest, config, opened.tokenizer, weights)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_directory(tiny_network("bert", WORDS), tmp_path / "network")


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name == "bert" else [pytest.mark.nightly]) for name in FAMILIES]
)
def test_network_is_the_same_after_its_registration(family: str, tmp_path: Path) -> None:
    network = tiny_network(family, WORDS)
    opened = read(write_directory(network, tmp_path / "n"))
    assert opened.sizes == network.sizes
    assert opened.digest == read(tmp_path / "n").digest
    expected = network.tensors()
    assert set(opened.tensors()) == set(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in opened.tensors().items())
    assert opened.tokenizer.numbers(["Server of music"], 8) == [[2, 5, 1, 7, 3]]


def test_tensors_of_heads_are_left_out_and_old_names_are_known(directory: Path) -> None:
    before = read(directory)
    tensors = safetensors.torch.load_file(directory / "model.safetensors")
    renamed = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): own
        for name, own in tensors.items()
    }
    (directory / "model.safetensors").write_bytes(pack(renamed | {"cls.bias": torch.zeros(3)}, {}))
    with NetworkDirectory(directory) as opened:
        assert opened.left_out == ("cls.bias",)
        assert opened.digest == before.digest


def test_weights_may_be_in_several_files_and_of_16_bits(directory: Path) -> None:
    tensors = {name: own.half() for name, own in safetensors.torch.load_file(directory / "model.safetensors").items()}
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {f"model-0000{k + 1}-of-00002.safetensors": names[k::2] for k in range(2)}
    for file, own in files.items():
        (directory / file).write_bytes(pack({name: tensors[name] for name in own}, {}))
    index = {"weight_map": {name: file for file, own in files.items() for name in own}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with NetworkDirectory(directory) as opened:
        specs = {name: TensorSpec.of(own) for name, own in safetensors.torch.load(b"".join(opened.weights())).items()}
    assert specs == {name: TensorSpec(torch.float16, tuple(own.shape)) for name, own in tensors.items()}
    assert {own.dtype for own in read(directory).tensors().values()} == {torch.float32}


def test_vocabulary_files_stand_for_a_tokenizer(directory: Path, tmp_path: Path) -> None:
    (directory / "tokenizer.json").unlink()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "server", "##s", "query", "music"]
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
    assert read(directory).tokenizer.numbers(["Servers, MUSIC"], 8) == [[2, 5, 6, 1, 8, 3]]
    assert read(directory).tokenizer.numbers(["server " * 20], 4) == [[2, 5, 5, 3]]
    bytewise = write_directory(tiny_network("gpt2", WORDS), tmp_path / "gpt2")
    (bytewise / "tokenizer.json").unlink()
    (bytewise / "vocab.json").write_text(json.dumps({"s": 0, "e": 1, "se": 2, "r": 3}))
    (bytewise / "merges.txt").write_text("#version: 0.2\ns e\n")
    assert read(bytewise).tokenizer.numbers(["ser"], 8) == [[2, 3]]
    (bytewise / "merges.txt").write_text("s x\n")
    with pytest.raises(RequestError, match=r"merges\.txt of .* has a line that is no pair of pieces"):
        read(bytewise)


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _write(name: str, data: bytes) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / name).write_bytes(data)

    return write


def _link(name: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (directory / name).rename(directory.parent / name)
        (directory / name).symlink_to(directory.parent / name)

    return change


def _weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    def rewrite(directory: Path) -> None:
        path = directory / "model.safetensors"
        path.write_bytes(pack(change(safetensors.torch.load(path.read_bytes())), {}))

    return rewrite


def _fifo(directory: Path) -> None:
    (directory / "config.json").unlink()
    os.mkfifo(directory / "config.json")


def _index(file: str) -> Callable[[Path], None]:
    return _write("model.safetensors.index.json", json.dumps({"weight_map": {"a": file}}).encode())


WORD = "embeddings.word_embeddings.weight"
HUGE_HEADER = (1 << 40).to_bytes(8, "little") + b"{}"
OVERLAPPING = (
    b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
)
OUT_OF_BOUNDS = b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'


def _safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(4)


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickle": (_write("pytorch_model.bin", b"x"), "the file 'pytorch_model.bin': files of code and pickled weights"),
    "code": (_write("modeling_bert.py", b"x"), "the file 'modeling_bert.py': files of code"),
    "auto_map": (_config(auto_map={"AutoModel": "m.M"}), 'config.json has "auto_map": the network needs code'),
    "trust": (_config(trust_remote_code=True), 'config.json has "trust_remote_code"'),
    "quantized": (_config(quantization_config={"bits": 4}), 'has "quantization_config": the weights are compressed'),
    "decoder": (_config(is_decoder=True), '"is_decoder" is true'),
    "positions": (_config(position_embedding_type="relative_key"), '"position_embedding_type" is "relative_key"'),
    "family": (_config(model_type="llama"), '"model_type" is "llama", which is no known kind of network'),
    "missing": (_config(hidden_size=None), '"hidden_size" is missing'),
    "range": (_config(num_hidden_layers=10**9), '"num_hidden_layers" is 1000000000'),
    "type": (_config(hidden_size="16"), '"hidden_size" is "16"'),
    "heads": (_config(num_attention_heads=3), '"hidden_size" 16 cannot be split into 3 heads'),
    "activation": (_config(hidden_act="__import__"), '"hidden_act" is "__import__"'),
    "padding": (_config(pad_token_id=50), '"pad_token_id" 50 is none of 9 tokens'),
    "no json": (_write("config.json", b"{"), "config.json of .* is no valid JSON"),
    "deep json": (_write("config.json", b"[" * 100_000), "config.json of .* is no valid JSON"),
    "no text": (_write("config.json", b"\xff"), "config.json of .* is no UTF-8 text"),
    "large config": (_write("config.json", b" " * ((1 << 20) + 1)), "has 1048577 bytes, more than 1048576"),
    "link": (_link("model.safetensors"), "model.safetensors of .* is a symbolic link, which is not followed"),
    "linked config": (_link("config.json"), "config.json of .* is a symbolic link"),
    "fifo": (_fifo, "config.json of .* is no regular file"),
    "path": (_index("../model.safetensors"), "names the file '../model.safetensors', which is no plain name"),
    "absolute path": (_index("/etc/passwd"), "names the file '/etc/passwd', which is no plain name"),
    "other file": (_index("model.bin"), "names the file 'model.bin', which is no plain name"),
    "no map": (_write("model.safetensors.index.json", b"[]"), 'has no usable "weight_map"'),
    "header": (_write("model.safetensors", HUGE_HEADER), "model.safetensors of .* is no valid safetensors file"),
    "cut": (_write("model.safetensors", b"\x10\x00"), "is no valid safetensors file"),
    "overlap": (_write("model.safetensors", _safetensors(OVERLAPPING)), "is no valid safetensors file"),
    "bounds": (_write("model.safetensors", _safetensors(OUT_OF_BOUNDS)), "is no valid safetensors file"),
    "lacks": (_weights(lambda own: {n: t for n, t in own.items() if n != WORD}), f"lack 1 of .* tensors: {WORD}"),
    "shape": (_weights(lambda own: own | {WORD: torch.zeros(9, 15)}), r"has shape \[9, 15\], and by config"),
    "integers": (_weights(lambda own: own | {WORD: torch.zeros(9, 16, dtype=torch.int64)}), "is of type torch.int64"),
    "infinite": (_weights(lambda own: own | {WORD: torch.full((9, 16), torch.inf)}), "is no finite number"),
    "tokenizer": (_write("tokenizer.json", b'{"model": 1}'), "tokenizer.json of .* cannot be read"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "has neither tokenizer.json nor vocab.txt"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "model.safetensors of .* cannot be opened"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_faulty_directories_are_refused_by_name(directory: Path, fault: str) -> None:
    change, message = REFUSED[fault]
    change(directory)
    with pytest.raises(RequestError, match=message) as refused:
        read(directory)
    assert refused.value.hint


def test_tokenizer_with_more_tokens_than_the_network_is_refused(directory: Path) -> None:
    more = tiny_network("bert", (*WORDS, "more"))
    (directory / "tokenizer.json").write_text(more.tokenizer_text)
    with pytest.raises(RequestError, match="has tokens up to 9, and the network those below 9"):
        read(directory)


def test_directory_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be opened as a directory: No such file"):
        read(tmp_path / "absent")
