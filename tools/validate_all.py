#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs attn-validate on every implementation that is here and joins the reports.

usage: validate_all.py TOOLS [--out FILE] [--icd NAME=ICD]... [--only NAME]...

TOOLS is the folder with the built tools. The implementations: the host's own kernels,
PoCL, Mesa's rusticl, oclgrind with --data-races, and one for each --icd: a driver that is
not registered, as an .icd file or a folder of them (Intel's runtime for CPUs as
CONTRIBUTING.md unpacks it, say). FILE is docs/validation.md unless it is named. What is not
installed is named in the report. Exits with 1 if anything failed.
"""
import argparse
import concurrent.futures
import datetime
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "cases"

# name, title, how tests/on.py selects it, options: all problems where a kernel compiles and
# runs fast, fewer where it does not
ONCE = ["--rounds", "1"]
OPENCL = ["--device", "opencl:0"]


def cases(*names):
    return [word for name in names for word in ("--cases", str(CASES / f"{name}.txt"))]


def named(*variants):
    return [word for variant in variants for word in ("--variant", variant)]


GRADIENTS = named("softmax_bwd_tile_gpu") + cases("tiny_gradients", "tiny_dropout")
# of what shares kernels one
LINEAR = named(*(f"linear_{method}" for method in (
    "fwd_chunk", "bwd_chunk", "fwd_recurrent", "bwd_recurrent", "fwd_lmha_split", "bwd_lmha",
    "fwd_atomic"))) + cases("tiny_linear")
CHECKED = [*OPENCL, *ONCE, "--repeat", "1", "--stress", "0"]
TWICE = [*OPENCL, *ONCE, "--repeat", "2", "--stress", "10"]

RUNS = [
    ("host", "The host's kernels", "none",
     ["--device", "host", *cases("small", "medium", "gradients", "dropout", "linear")]),
    ("pocl", "PoCL, the variants for processors", "pocl",
     [*OPENCL, *ONCE, *named("softmax_fwd_tile_cpu", "softmax_fwd_split"),
      *cases("small", "medium")]),
    ("pocl-others", "PoCL, the other variants", "pocl",
     [*OPENCL, *ONCE, *named(*(f"softmax_fwd_{method}" for method in (
         "tile_gpu", "math", "math_clblast", "naive", "naive_copy"))), *cases("tiny")]),
    ("pocl-gradients", "PoCL, gradients and dropout", "pocl",
     [*OPENCL, *ONCE, *named("softmax_bwd_tile_cpu", "softmax_bwd_math",
                             "softmax_bwd_math_clblast", "softmax_fwd_tile_cpu"),
      *cases("tiny_gradients", "tiny_dropout")]),
    ("pocl-linear", "PoCL, linear attention", "pocl", [*TWICE, *cases("tiny_linear")]),
    ("rusticl", "Mesa's rusticl", "rusticl", [*TWICE, *cases("tiny")]),
    ("rusticl-gradients", "Mesa's rusticl, gradients and dropout", "rusticl",
     [*TWICE, *GRADIENTS]),
    ("rusticl-linear", "Mesa's rusticl, linear attention", "rusticl", [*TWICE, *LINEAR]),
    ("oclgrind", "oclgrind, a checker of races and addresses", "oclgrind",
     [*CHECKED, *cases("tiny")]),
    ("oclgrind-gradients", "oclgrind, gradients", "oclgrind",
     [*CHECKED, *named("softmax_bwd_tile_gpu", "softmax_bwd_math"), *cases("tiny_gradients")]),
    ("oclgrind-linear", "oclgrind, linear attention", "oclgrind", [*CHECKED, *LINEAR]),
]
SKIPPED = 77


def command(how, tool, options, cache):
    """The command and its environment: one implementation is visible and no other."""
    if how.startswith("icd:"):
        return [str(tool), *options], dict(os.environ, OCL_ICD_VENDORS=how[4:],
                                           ATTN_CACHE_DIR=cache)
    return [sys.executable, str(ROOT / "tests" / "on.py"), how, str(tool), *options], None


def run(title, how, options, tool):
    print(f"{title}: {' '.join(options)}", file=sys.stderr, flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        args, env = command(how, tool, [*options, "--markdown"], cache)
        done = subprocess.run(args, env=env, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout, time.monotonic() - start


def outcome(status, text):
    """What the summary says: attn-validate's last line, or why there is none."""
    counts = re.findall(r"(?m)^\d+ passed, \d+ failed, \d+ skipped$", text)
    if status == SKIPPED:
        return "not installed here"
    if not counts:
        return f"no report: exit status {status}"
    told = status == 0 or (status == 1 and ", 0 failed" not in counts[-1])
    return counts[-1] + ("" if told else f"; exit status {status}, see there")


def section(title, options, text):
    """One report as a part of the whole: its headings go one level down."""
    shown = " ".join(o.replace(str(ROOT) + "/", "") for o in options)
    body = re.sub(r"(?m)\A# .*\n+", "", text)
    body = re.sub(r"(?m)^(#+ )", r"#\1", body)
    return f"## {title}\n\n`attn-validate {shown}`\n\n{body.strip()}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("tools", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "validation.md")
    parser.add_argument("--icd", action="append", default=[], metavar="NAME=ICD")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    args = parser.parse_args()
    tool = args.tools.resolve() / "attn-validate"
    runs = list(RUNS)
    for icd in args.icd:
        name, _, path = icd.partition("=")
        if not path or not pathlib.Path(path).exists():
            sys.exit(f"--icd {icd}: want NAME=ICD, an .icd file or a folder of them")
        runs.append((name, name, f"icd:{pathlib.Path(path).resolve()}",
                     [*OPENCL, *ONCE, *cases("tiny")]))
    unknown = set(args.only) - {name for name, *_ in runs}
    if unknown:
        sys.exit(f"--only {unknown.pop()}: want one of {', '.join(r[0] for r in runs)}")
    rows, sections, bad = [], [], False
    runs = [r for r in runs if not args.only or r[0] in args.only]
    # most of the time is one compiler's: as many at once as there are cores
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda r: run(r[1], r[2], r[3], tool), runs))
    for (_, title, _, options), (status, text, seconds) in zip(runs, done):
        bad = bad or status not in (0, SKIPPED)
        rows.append(f"| {title} | {outcome(status, text)} | {seconds / 60:.1f} |")
        if text.strip() and status != SKIPPED:
            sections.append(section(title, options, text))
    machine = os.uname()
    head = ["# Validation", "",
            "Every variant of every implementation of OpenCL at hand, and of the host, against",
            "the double-precision oracle: what `attn-validate` says, joined by",
            "`tools/validate_all.py`. Tolerances and checks: *attn-validate*(1).", "",
            f"{datetime.date.today()}, {machine.sysname} {machine.machine}.", "",
            "| implementation | result | minutes |", "|---|---|---:|", *rows, ""]
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text("\n".join(head) + "\n" + "\n".join(sections), encoding="utf-8")
    print(args.out)
    return bad


if __name__ == "__main__":
    sys.exit(main())
