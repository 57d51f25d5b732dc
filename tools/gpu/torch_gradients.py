#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times libattn's gradients of softmax attention beside PyTorch's, in one process and on the
same tensors.

usage: torch_gradients.py LIBATTN.so [--type bf16] [--variant NAME]... [--peer NAME]...
                          [--d N...] [--l N...] [--tokens N] [--json FILE]

dQ, dK and dV of B * L = --tokens (16384), H * D = 2048, with and without causal. Ours are the
planner's choice, or each --variant. Held against float64 on one head before anything is timed
(where L is at most 4096; beyond, against the first contender). Single launches after idle
milliseconds, the median; TFLOP/s count five products, 5 * 2 * D for every visible pair. Exits
with 1 if ours is wrong or says no.
"""
import argparse
import ctypes
import json
import math
import pathlib
import statistics
import sys

import attn_ctypes as attn
import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import torch_sdpa as sdpa
import torch_timing as timing

# Of the largest element: P and dS are rounded to the type, and sums run over L of them.
TOLERANCE = {"f32": 2e-5, "f16": 2.0**-8, "bf16": 2.0**-5}
PRODUCTS, CHECKED = 5, 4096


class Ours:
    """The library's backward pass, given what its own forward found."""

    def __init__(self, lib, problem, variant, tensors):
        self.lib, self.plans, self.space = lib, [], []
        self.ctx = lib.context(cuda=sdpa.current_context())
        q, k, v, grad_o = tensors
        o = torch.empty_like(q)
        lse = torch.empty(*q.shape[:3], 1, device="cuda")
        self.out = [torch.full_like(x, math.nan) for x in (q, k, v)]
        named = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
        text = sdpa.text_of(problem)
        forward = self.prepare(text + ",lse", None, named)
        self.args = self.prepare(
            text.replace("softmax_fwd", "softmax_bwd") + ",grad=q+k+v", variant,
            {**named, "grad_o": grad_o,
             **dict(zip(("grad_q", "grad_k", "grad_v"), self.out))})
        self.keep = named
        self.name = lib.instance(self.plans[1])
        lib.execute(self.plans[0], ctypes.byref(forward), timing.current_stream())

    def prepare(self, text, variant, named):
        try:
            plan = self.lib.plan(self.ctx, self.lib.parse(text), variant)
        except attn.Error as error:
            raise sdpa.No(f"says no: {error}") from error
        self.plans.append(plan)
        size = self.lib.workspace_bytes(plan)
        self.space.append(torch.empty(max(size, 1), dtype=torch.uint8, device="cuda"))
        args = attn.Args(size=ctypes.sizeof(attn.Args), workspace_bytes=size,
                         workspace=self.space[-1].data_ptr())
        types = {torch.float32: attn.F32, torch.float16: attn.F16, torch.bfloat16: attn.BF16}
        for name, x in named.items():
            setattr(args, name, attn.tensor(x.data_ptr(), types[x.dtype], x.shape, x.stride()))
        return args

    def active(self):
        return sdpa.contextlib.nullcontext()

    def launch(self, _i, stream):
        self.lib.execute(self.plans[1], ctypes.byref(self.args), stream)

    def close(self):
        for plan in self.plans:
            self.lib.so.attn_plan_destroy(ctypes.byref(plan))
        self.lib.so.attn_ctx_destroy(ctypes.byref(self.ctx))


class Peer:
    """PyTorch's, through autograd: the graph of one forward, walked again and again."""

    def __init__(self, name, problem, tensors):
        self.name, self.backend = f"PyTorch, {name}", getattr(sdpa.SDPBackend,
                                                              sdpa.PEERS[name])
        self.inputs = [x.detach().requires_grad_() for x in tensors[:3]]
        self.grad_o = tensors[3]
        try:
            with self.active():
                self.o = scaled_dot_product_attention(*self.inputs, is_causal=problem.causal)
                self.launch(0, None)
        except RuntimeError as error:
            raise sdpa.No(f"says no: {error}"[:200]) from error

    def active(self):
        return sdpa_kernel(self.backend)

    def launch(self, _i, _stream):
        self.out = torch.autograd.grad(self.o, self.inputs, self.grad_o, retain_graph=True)

    def close(self):
        self.inputs = self.o = self.out = None


def reference(p, q, k, v, grad_o):
    """Gradients of the last head in float64."""
    b, h = p.b - 1, p.hq - 1
    q, k, v = (x[b, h].double().requires_grad_() for x in (q, k, v))
    scores = q @ k.T / math.sqrt(p.d)
    if p.causal:
        later = torch.ones(p.lq, p.lk, dtype=torch.bool, device="cuda").triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return torch.autograd.grad(torch.softmax(scores, 1) @ v, (q, k, v),
                               grad_o[b, h].double())


def last_head(p, c):
    """What a contender finds for the last head."""
    with c.active():
        c.launch(0, timing.current_stream())
    torch.cuda.synchronize()
    return [x[p.b - 1, p.hq - 1].double() for x in c.out]


def errors(p, have, want):
    """The largest errors of dQ, dK and dV, of the largest element of each."""
    found = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(have, want)]
    if not all(e <= TOLERANCE[p.type] for e in found):
        raise sdpa.No(f"wrong: {found}")
    return found


def measure(lib, p, options):
    torch.manual_seed(1)
    type_ = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[p.type]
    tensors = [torch.randn(p.b, p.lq, p.hq, p.d, device="cuda", dtype=type_).transpose(1, 2)
               for _ in range(4)]
    want = reference(p, *tensors) if p.lq <= CHECKED else None
    makers = [(v or "ours", lambda v=v: Ours(lib, p, v, tensors))
              for v in options.variant or [None]]
    makers += [(f"PyTorch, {n}", lambda n=n: Peer(n, p, tensors)) for n in options.peer]
    pairs = p.lq * (p.lq + 1) // 2 if p.causal else p.lq * p.lk
    rows = []
    for name, make in makers:
        row = {"problem": sdpa.text_of(p).replace("_fwd", "_bwd"), "by": name}
        rows.append(row)
        try:
            c = make()
            row["by"] = c.name
            have = last_head(p, c)
            want = want or have
            row["errors"] = errors(p, have, want)
            ms = timing.single(c)
            row.update({"ms": statistics.median(ms), "spread": (max(ms) - min(ms)) /
                        statistics.median(ms)})
            row["TFLOP/s"] = PRODUCTS * 2 * p.b * p.hq * p.d * pairs / row["ms"] / 1e9
            row["ours/it"] = row["ms"] / rows[0].get("ms", math.nan)
            c.close()
        except sdpa.No as why:
            row["not timed"] = str(why)
    return rows


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1][len("usage: "):])
    add = parser.add_argument
    add("lib")
    add("--type", choices=attn.TYPES, default="bf16")
    add("--variant", action="append")
    add("--peer", action="append", choices=sdpa.PEERS)
    add("--d", type=int, nargs="+", default=[64, 128])
    add("--l", type=int, nargs="+", default=[1024, 4096, 16384])
    add("--tokens", type=int, default=16384)
    add("--json", metavar="FILE")
    options = parser.parse_args()
    options.peer = options.peer or ["flash", "cudnn"]
    lib, all_rows = attn.Library(options.lib), []
    torch.backends.cuda.matmul.allow_tf32 = False
    print("| problem | by | ms | spread | TFLOP/s | ours/it | errors of dQ, dK, dV |\n"
          "|---|---|---:|---:|---:|---:|---|")
    with torch.cuda.stream(torch.cuda.Stream()):
        for d in options.d:
            for causal in (False, True):
                for n in options.l:
                    p = sdpa.Problem(options.type, max(options.tokens // n, 1), 2048 // d,
                                     2048 // d, n, n, d, causal)
                    rows = measure(lib, p, options)
                    torch.cuda.empty_cache()
                    all_rows += rows
                    for r in rows:
                        print("| " + " | ".join(
                            [r["problem"], r["by"], r["not timed"]] if "not timed" in r else
                            [r["problem"], r["by"], f"{r['ms']:.3f}",
                             f"{100 * r['spread']:.1f} %", f"{r['TFLOP/s']:.1f}",
                             f"{r['ours/it']:.3f}",
                             ", ".join(f"{e:.1e}" for e in r["errors"])]) + " |", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(all_rows, indent=1) + "\n")
    ours = [r for r in all_rows if not r["by"].startswith("PyTorch")]
    return 1 if any("not timed" in r for r in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
