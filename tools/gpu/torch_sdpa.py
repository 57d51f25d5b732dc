#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times libattn beside PyTorch's attention, in one process and on the same tensors.

usage: torch_sdpa.py LIBATTN.so [--set NAME]... [options]
       torch_sdpa.py LIBATTN.so --self-check

Results are compared with float64 on some rows, and over all of O with each other, before
anything is timed. Two ways of timing, both by the device's events:

single  one launch at a time after some idle milliseconds, behind a short spin kernel that
        hides what the host takes: the median
blocks  back to back for --seconds in the order A B B A, ours and each other in turn; the
        last 60 % of each block count. Launches of less than 0.2 ms are replayed as a graph

Prints a Markdown table. "ours/it" is above 1 where ours is faster. TFLOP/s count
2 * (D + Dv) for every visible pair; for few queries the rate is K and V in GB/s instead,
and enough copies of the inputs take turns that they come from memory. Ours is the
planner's choice, or the first --variant; more of them stand as others. "host us" is what
one call takes of the host, Python's part included; "first ms" a first plan and a first
run, of PyTorch's a first call. --self-check runs the C interface on host arrays: it needs
neither PyTorch nor a GPU.

Exits with 1 if ours is wrong or says no, 2 for bad arguments.
"""
import argparse
import collections
import contextlib
import ctypes
import datetime
import json
import math
import pathlib
import statistics
import sys
import time
import warnings

import attn_ctypes as attn

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    import torch_timing as timing
except ImportError:
    torch = None   # --self-check goes without

FEW_QUERIES, L2_SIZES, ROWS = 16, 4, 16
# The most that an error may be of the largest element; P too is rounded to the type.
TOLERANCE = {"f32": 2e-5, "f16": 2.0**-9, "bf16": 2.0**-6}

Problem = collections.namedtuple("Problem", "type b hq hkv lq lk d causal bias",
                                 defaults=[False])
LENGTHS = [1024, 2048, 4096, 8192, 16384]
SETS = {
    "forward": [Problem("bf16", 16384 // n, 2048 // d, 2048 // d, n, n, d, c)
                for d in (64, 128, 256) for c in (False, True) for n in LENGTHS],
    "gqa": [Problem("bf16", 1, 64, 8, n, n, 128, c)
            for c in (False, True) for n in LENGTHS[1:]],
    "decode": [Problem("bf16", b, 32, 8, 1, n, 128, False)
               for b, n in ((1, 8192), (8, 8192), (64, 8192), (1, 131072))],
    "bias": [Problem("bf16", 4, 2048 // d, 2048 // d, 4096, 4096, d, True, True)
             for d in (64, 128, 256)],
    "f32": [Problem("f32", 4, 2048 // d, 2048 // d, 4096, 4096, d, c)
            for d in (64, 128) for c in (False, True)],
}
PEERS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION",
         "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
HEADS = ["problem", "by", "us", "spread", "rate", "ours/it", "blocks: rate",
         "blocks: ours/it", "max abs err", "max rel err", "from ours", "host us",
         "first ms"]


def text_of(p):
    """The problem as attn/text.h writes it."""
    return (f"softmax_fwd:{p.type},b{p.b},hq{p.hq},hkv{p.hkv},lq{p.lq},lk{p.lk},d{p.d}"
            + (",causal" if p.causal else "") + (f",bias={p.type}" if p.bias else ""))


class No(Exception):
    """Why a contender is not timed."""


class Ours:
    def __init__(self, lib, problem, variant, sets):
        self.lib, self.ctx, self.plan = lib, ctypes.c_void_p(), ctypes.c_void_p()
        self.name = variant or "the planner's choice"
        self.out = torch.full_like(sets[0][0], math.nan)
        start = time.perf_counter()
        try:
            self.ctx = lib.context(cuda=current_context())
            self.plan = lib.plan(self.ctx, lib.parse(text_of(problem)), variant)
        except attn.Error as error:
            self.close()
            raise No(f"says no: {error}") from error
        self.name = lib.instance(self.plan)
        self.space = torch.empty(max(lib.workspace_bytes(self.plan), 1), dtype=torch.uint8,
                                 device="cuda")
        self.args = [self.arguments(problem, *tensors) for tensors in sets]
        self.launch(0, timing.current_stream())
        torch.cuda.synchronize()
        self.first_ms = (time.perf_counter() - start) * 1e3

    def arguments(self, problem, q, k, v, bias):
        args = attn.Args(size=ctypes.sizeof(attn.Args), workspace=self.space.data_ptr(),
                         workspace_bytes=self.lib.workspace_bytes(self.plan))
        for name, x in (("q", q), ("k", k), ("v", v), ("o", self.out), ("bias", bias)):
            if x is None:
                continue
            setattr(args, name, attn.tensor(x.data_ptr(), attn.TYPES[problem.type],
                                            x.shape, x.stride()))
        return args

    def active(self):
        return contextlib.nullcontext()

    def launch(self, i, stream):
        self.lib.execute(self.plan, ctypes.byref(self.args[i % len(self.args)]), stream)

    def close(self):
        self.lib.free(self.ctx, self.plan)


class Peer:
    def __init__(self, name, problem, sets):
        self.name, self.sets, self.out = f"PyTorch, {name}", [s[:3] for s in sets], None
        self.how = {"is_causal": problem.causal, "enable_gqa": problem.hq != problem.hkv}
        if problem.bias:   # it takes a mask or causal, not both: one mask has both
            mask = sets[0][3]
            if problem.causal:
                later = torch.ones(problem.lq, problem.lk, dtype=torch.bool, device="cuda")
                mask = mask.masked_fill(later.triu(1), -math.inf)
            self.how.update(is_causal=False, attn_mask=mask)
        self.backend = getattr(SDPBackend, PEERS[name])
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as said, self.active():
            warnings.simplefilter("always")
            try:
                self.launch(0, None)
                torch.cuda.synchronize()
            except torch.OutOfMemoryError as error:
                raise No("out of memory") from error
            except RuntimeError as error:
                if "CUDA error" in str(error):   # which stays: nothing more can run
                    raise
                why = " ".join(str(w.message).split(" (Triggered")[0] for w in said)
                raise No(f"says no: {why or error}"[:300]) from error
        self.first_ms = (time.perf_counter() - start) * 1e3

    def active(self):
        return sdpa_kernel(self.backend)

    def launch(self, i, _stream):
        self.out = scaled_dot_product_attention(*self.sets[i % len(self.sets)], **self.how)

    def close(self):
        self.sets = self.out = self.how = None


def current_context():
    """PyTorch's CUcontext: the current one of this thread, once anything was allocated."""
    context = ctypes.c_void_p()
    ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    return context


def make_sets(p):
    """Normal random Q, K and V in the memory order (B, L, H, D), seen as (B, H, L, D); as
    many copies as it takes to exceed the L2 cache if K and V are read but once."""
    type_ = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[p.type]
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    copies = 1 + math.ceil(L2_SIZES * cache / key_bytes(p)) if p.lq <= FEW_QUERIES else 1

    def normal(length, heads):
        x = torch.randn(p.b, length, heads, p.d, device="cuda", dtype=type_)
        return x.transpose(1, 2)

    torch.manual_seed(1)
    bias = torch.randn(p.b, p.hq, p.lq, p.lk, device="cuda", dtype=type_) if p.bias else None
    return [(normal(p.lq, p.hq), normal(p.lk, p.hkv), normal(p.lk, p.hkv), bias)
            for _ in range(copies)]


def key_bytes(p):
    return 2 * p.b * p.hkv * p.lk * p.d * (4 if p.type == "f32" else 2)


def rate(p, ms):
    """TFLOP/s, or GB/s of K and V for few queries."""
    if p.lq <= FEW_QUERIES:
        return key_bytes(p) / ms / 1e6
    pairs = sum(min(i + 1, p.lk) for i in range(p.lq)) if p.causal else p.lq * p.lk
    return 4 * p.b * p.hq * p.d * pairs / ms / 1e9


def reference_rows(p, q, k, v, bias):
    """Some rows of O in float64, with their places: the first, the last and random ones."""
    draw = torch.Generator().manual_seed(2)
    places = [(0, 0, 0), (p.b - 1, p.hq - 1, p.lq - 1)] + [
        tuple(int(torch.randint(n, (1,), generator=draw)) for n in (p.b, p.hq, p.lq))
        for _ in range(ROWS - 2)]
    rows = []
    for b, h, i in places:
        seen, group = i + 1 if p.causal else p.lk, p.hq // p.hkv
        keys, values = (x[b, h // group, :seen].double() for x in (k, v))
        scores = keys @ q[b, h, i].double() / math.sqrt(p.d)
        if bias is not None:
            scores += bias[b, h, i, :seen].double()
        weights = torch.softmax(scores, 0)
        rows.append(weights @ values)
    return places, torch.stack(rows)


def check(p, c, ours, places, want):
    """Errors of a contender: against float64, and the largest distance from ours."""
    with c.active():
        c.launch(0, timing.current_stream())
    have = torch.stack([c.out[place] for place in places]).double()
    worst = (have - want).abs().max().item()
    apart = torch.stack([(a.float() - b.float()).abs().max()
                         for a, b in zip(c.out, ours.out)]).max().item()
    errors = {"max abs err": worst, "max rel err": worst / want.abs().max().item(),
              "from ours": apart}
    if not (errors["max rel err"] <= TOLERANCE[p.type] and math.isfinite(apart)):
        raise No(f"wrong: {errors}")
    return errors


def open_all(lib, p, options, sets):
    """Those that take the problem and are right, ours first, each with its row; and rows of
    the others."""
    wanted = [(v or "the planner's choice", lambda v=v: Ours(lib, p, v, sets))
              for v in options.variant or [None]]
    wanted += [(f"PyTorch, {n}", lambda n=n: Peer(n, p, sets))
               for n in options.peer or PEERS]
    places, want = reference_rows(p, *sets[0])
    opened, refused = [], []
    for name, make in wanted:
        row, c = {"problem": text_of(p), "by": name, "copies": len(sets)}, None
        try:
            c = make()
            row.update({"by": c.name, "first ms": c.first_ms},
                       **check(p, c, opened[0][0] if opened else c, places, want))
            opened.append((c, row))
        except No as why:
            refused.append({**row, "not timed": str(why)})
            if c:
                c.close()
            if not opened:   # ours: there is nothing to compare with
                break
    return opened, refused


def measure(lib, p, options):
    """The rows of one problem."""
    sets = make_sets(p)
    opened, refused = open_all(lib, p, options, sets)
    ours, our_row = opened[0] if opened else (None, None)
    for c, row in opened:
        ms = timing.single(c)
        row.update({"ms": statistics.median(ms), "ms least": min(ms), "ms most": max(ms),
                    "rate": rate(p, statistics.median(ms)), "host us": timing.host(c)})
        row["ours/it"] = row["ms"] / our_row["ms"]
    all_ours = []
    for c, row in opened[1:] if options.timing == "both" else []:
        ms, its = timing.blocks(ours, c, len(sets), (our_row["ms"], row["ms"]),
                                options.seconds)
        all_ours.append(ms)
        row.update({"blocks: ms": its, "blocks: rate": rate(p, its),
                    "blocks: ours/it": its / ms})
        our_row["blocks: rate"] = rate(p, statistics.mean(all_ours))
    for c, _ in opened:
        c.close()
    return [row for _, row in opened] + refused


def markdown(row, p):
    """One line of the table."""
    if "not timed" in row:
        return (f"| {row['problem']} | {row['by']} | "
                + row["not timed"].replace("|", "/").replace("\n", " ") + " |" * 11)
    unit = "GB/s" if p.lq <= FEW_QUERIES else "TFLOP/s"
    spread = (row["ms most"] - row["ms least"]) / row["ms"] * 100
    cells = [row["problem"], row["by"], f"{row['ms'] * 1e3:.1f}", f"{spread:.1f} %",
             f"{row['rate']:.1f} {unit}", f"{row['ours/it']:.3f}",
             f"{row['blocks: rate']:.1f} {unit}" if "blocks: rate" in row else "",
             f"{row['blocks: ours/it']:.3f}" if "blocks: ours/it" in row else "",
             *(f"{row[name]:.1e}" for name in ("max abs err", "max rel err", "from ours")),
             f"{row['host us']:.1f}", f"{row['first ms']:.1f}"]
    return "| " + " | ".join(cells) + " |"


def environment(lib):
    """Versions, the date, and the device's own ceilings, measured now."""
    driver = pathlib.Path("/sys/module/nvidia/version")
    return {"device": torch.cuda.get_device_name(0), "libattn": lib.version(),
            "torch": torch.__version__, "CUDA": torch.version.cuda,
            "cuDNN": torch.backends.cudnn.version(),
            "driver": driver.read_text().strip() if driver.exists() else "not told",
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "minutes"),
            **timing.ceilings()}


def read_options(argv):
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1][len("usage: "):])
    add = parser.add_argument
    add("lib", help="the shared library, build/src/libattn.so")
    add("--self-check", action="store_true", help="run the C interface on host arrays")
    add("--set", action="append", choices=SETS, default=[], help="may be given again")
    add("--type", choices=attn.TYPES, default="bf16")
    add("--b", type=int, help="batch; default: --tokens / L")
    add("--tokens", type=int, default=16384, help="of all batches; default 16384")
    add("--hq", type=int, help="query heads; default 2048 / D")
    add("--hkv", type=int, help="key/value heads; default --hq")
    add("--d", type=int, nargs="+", default=[128], help="default 128")
    add("--l", type=int, nargs="+", help="keys, and queries without --decode")
    add("--causal", choices=("no", "yes", "both"), default="no")
    add("--decode", action="store_true", help="one query a sequence, not causal")
    add("--variant", action="append", help="ours by name; may be given again")
    add("--peer", action="append", choices=PEERS, help="default all; may be given again")
    add("--timing", choices=("single", "both"), default="both")
    add("--seconds", type=float, default=0.25, help="of a block; default 0.25")
    add("--json", metavar="FILE", help="write all of it, after each problem")
    o = parser.parse_args(argv)
    o.problems = [p for name in o.set for p in SETS[name]]
    for d in o.d:
        for causal in {"no": [False], "yes": [True], "both": [False, True]}[o.causal]:
            for n in o.l or []:
                hq = o.hq or 2048 // d
                o.problems.append(Problem(o.type, o.b or max(o.tokens // n, 1), hq,
                                          o.hkv or hq, 1 if o.decode else n, n, d,
                                          causal and not o.decode))
    if not o.problems and not o.self_check:
        parser.error("no problem: give --l or --set")
    return o


def main():
    options = read_options(sys.argv[1:])
    try:
        lib = attn.Library(options.lib)
    except (OSError, AttributeError) as fault:   # no library, or one that lacks a call
        print(f"torch_sdpa.py: LIBATTN.so = {options.lib!r}: {fault}", file=sys.stderr)
        return 2
    if options.self_check:
        print(attn.self_check(lib))
        return 0
    if not torch:
        print("torch_sdpa.py: PyTorch is not here, only --self-check runs", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    bad, report = False, {"rows": []}
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        report["environment"] = environment(lib)
        print("\n".join(f"- {name}: {value}" for name, value in
                        report["environment"].items()), end="\n\n")
        print("| " + " | ".join(HEADS) + " |\n|---|---" + "|---:" * 11 + "|", flush=True)
        for p in options.problems:
            print(text_of(p), file=sys.stderr, flush=True)
            rows = measure(lib, p, options)
            torch.cuda.empty_cache()
            bad = bad or "not timed" in rows[0]
            report["rows"] += rows
            print("\n".join(markdown(row, p) for row in rows), flush=True)
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
