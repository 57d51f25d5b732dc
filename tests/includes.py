#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Who may include whom (docs/architecture.md), over every #include of the tree.

usage: includes.py ROOT
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.M)
DRIVER = re.compile(r"^(CL/|cuda|nv|clblast|cublas|cudnn)")

# folder -> what its "quoted" includes may begin with; the first match counts
ALLOWED = {
    "include/attn": [],
    "src/core": ["core/"],
    "src/problem": ["core/", "problem/"],
    "src/host": ["core/", "host/"],
    "src/plan": ["core/", "problem/", "plan/"],
    "src/backend/opencl": ["core/", "plan/step.h", "backend/backend.h", "backend/rounds.h",
                           "backend/opencl/", "common/params.h", "common/work.h"],
    "src/backend/cuda": ["core/", "plan/step.h", "backend/backend.h", "backend/rounds.h",
                         "backend/cuda/", "common/maps.h", "common/params.h", "common/work.h"],
    "src/backend/host": ["core/", "plan/step.h", "backend/backend.h", "backend/host/", "host/"],
    "src/backend": ["core/", "plan/step.h", "backend/"],
    "src/api": ["core/", "problem/", "plan/", "backend/backend.h", "backend/list.h", "api/"],
    "cl_kernels": ["common/", "softmax/", "linear/"],
    "cuda_kernels": ["common/", "softmax/", "linear/"],
    "tools": ["tools/", ""],
    "examples": [],
}
MAY_SEE_DRIVERS = ("include/attn/opencl.h", "include/attn/cuda.h", "src/backend/opencl/",
                   "src/backend/cuda/", "tools/gpu/")
NEVER_IN_PLAN = re.compile(r"\bgetenv\b|\bmalloc\b|\bcalloc\b|#\s*include\s*<time.h>")


def faults(root, path):
    name = path.relative_to(root).as_posix()
    folder = next((f for f in ALLOWED if name.startswith(f + "/")), None)
    text = path.read_text()
    for quote, target in INCLUDE.findall(text):
        if DRIVER.match(target) and not name.startswith(MAY_SEE_DRIVERS):
            yield f"{name}: includes the driver header {target}"
        if quote == "<" and not target.startswith("attn/"):
            continue
        if quote == "<":
            driver = target in ("attn/opencl.h", "attn/cuda.h")
            allowed = re.match(r"src/api/(opencl|cuda)\.c", name)
            if driver and name.startswith("src/") and not allowed:
                yield f"{name}: includes <{target}>"
            if name.startswith("src/core/") and target != "attn/status.h":
                yield f"{name}: core includes <{target}>"
            if name.startswith(("cl_kernels/", "cuda_kernels/")):
                yield f"{name}: a kernel includes <{target}>"
        elif not any(target.startswith(a) for a in ALLOWED[folder]):
            yield f"{name}: {folder} may not include \"{target}\""
        elif folder == "tools" and target.startswith(("src/", "core/", "plan/", "../src")):
            yield f"{name}: a tool includes \"{target}\""
    if name.startswith("src/plan/") and (match := NEVER_IN_PLAN.search(text)):
        yield f"{name}: the planner is pure, but here stands {match[0]}"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    paths = [p for f in ALLOWED for p in (root / f).rglob("*")
             if p.suffix in (".c", ".h", ".cl", ".clh", ".cu", ".cuh")]
    found = sorted({fault for path in paths for fault in faults(root, path)})
    print("\n".join(found) or f"{len(set(paths))} files keep the table")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
