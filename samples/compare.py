#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs attn-run over the samples on every device and type, against the model's output.

usage: compare.py ATTN_RUN        (Python's standard library only)

The best device of the machine comes first. Exit 1 if an output is off by more than
the type allows.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ALLOWED = {"f32": 5e-6, "f16": 5e-3, "bf16": 5e-2}   # largest difference; values reach 6.5


def numbers(path):
    """The elements of a version 1 .npy file of <f4 or <f2."""
    data = path.read_bytes()
    header = data[10:10 + int.from_bytes(data[8:10], "little")].decode()
    body = data[10 + len(header):]
    code, size = ("f", 4) if "<f4" in header else ("e", 2)
    return struct.unpack(f"<{len(body) // size}{code}", body)


def run(tool, device, kind, out):
    command = [tool, "softmax", "--device", device, "--type", kind, "--out", str(out),
               "--repeat", "21", "--json"]
    for name in ("q", "k", "v"):
        command += [f"--{name}", str(HERE / f"{name}.npy")]
    result = subprocess.run(command, text=True, capture_output=True)
    if result.returncode:
        sys.exit(f"{device}, {kind}: exit {result.returncode}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def main():
    tool = sys.argv[1]
    info = subprocess.run([str(pathlib.Path(tool).with_name("attn-info")), "--json"], text=True,
                          capture_output=True, check=True)
    want = numbers(HERE / "out.npy")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "o.npy")
        best = run(tool, "auto", "f32", out)["device"]
        others = [d["selector"] for d in json.loads(info.stdout)["devices"]]
        for device in [best] + [d for d in others if d != best]:
            for kind, allowed in ALLOWED.items():
                report = run(tool, device, kind, out)
                error = max(abs(a - b) for a, b in zip(numbers(out), want, strict=True))
                failed |= not error <= allowed
                print(f"{device:9} {kind:4} {report['median_ns'] / 1e6:9.3f} ms   largest error "
                      f"{error:.1e} of {allowed:.0e} {'ok' if error <= allowed else 'WRONG'}   "
                      f"{report['plan'].split()[0]}{'   <- best device' * (device == best)}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
