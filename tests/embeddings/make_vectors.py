"""Makes `vectors.bin` of `pairs.tsv`: the vectors of every text, in the order of the lines, as a real model has them.

    python3 tests/embeddings/live.py --make        after a change of the pairs; the result is committed

Each number is 16 bits, little end first, in steps of 1/32767. Cosines keep four decimals.
"""
import pathlib

import numpy

from minilm import MiniLm

HERE = pathlib.Path(__file__).resolve().parent
VECTORS = HERE / "vectors.bin"


def read_pairs():
    """Rows of (same or other, kind, first text, second text)."""
    lines = (HERE / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines]


def main():
    model = MiniLm()
    texts = [text for *_, first, second in read_pairs() for text in (first, second)]
    vectors = numpy.stack([model.embed(text) for text in texts])
    packed = numpy.round(vectors * 32767).astype("<i2")
    VECTORS.write_bytes(packed.tobytes())
    kept = packed.astype("f8") / 32767
    error = max(abs(kept[at] @ kept[at + 1] - vectors[at] @ vectors[at + 1]) for at in range(0, len(texts), 2))
    print(f"{len(texts)} vectors of {model.dimensions}, {packed.nbytes} bytes; the largest error of a cosine is {error:.6f}")


if __name__ == "__main__":
    main()
