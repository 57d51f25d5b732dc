#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a command with exactly one OpenCL implementation visible, or none.

usage: on.py pocl|rusticl|oclgrind|none|POCL_SETTING=VALUE... COMMAND...

77 (skipped) if the implementation is not installed. Kernels are cached in a
folder of their own, so that no earlier run is seen.
"""
import os
import pathlib
import sys
import tempfile

VENDORS = pathlib.Path("/etc/OpenCL/vendors")
ICDS = {
    "pocl": [VENDORS / "pocl.icd"],
    "rusticl": [VENDORS / "rusticl.icd"],
    "oclgrind": [pathlib.Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")],
}


def main():
    name, command = sys.argv[1], sys.argv[2:]
    env = dict(os.environ, RUSTICL_ENABLE="llvmpipe")
    while command and "=" in command[0] and not command[0].startswith("/"):
        key, value = command.pop(0).split("=", 1)
        env[key] = value
    with tempfile.TemporaryDirectory() as folder:
        env["ATTN_CACHE_DIR"] = folder + "/cache"
        if name == "none":
            os.mkdir(folder + "/vendors")
            env["OCL_ICD_VENDORS"] = folder + "/vendors"
        else:
            icd = next((path for path in ICDS[name] if path.exists()), None)
            if not icd:
                print(f"{name} is not installed: looked for {ICDS[name][0]}")
                return 77
            env["OCL_ICD_VENDORS"] = str(icd)
        if name == "oclgrind":   # the checker itself: found races and errors fail the command
            log = folder + "/oclgrind.log"
            # at its own level it makes calls that it then does not know (noalias.scope.decl),
            # of large kernels at -O1 too
            level = env.get("OCLGRIND_LEVEL", "-O1")
            command = ["oclgrind", "--data-races", "--build-options", level, "--log", log] + command
            del env["OCL_ICD_VENDORS"]
            status = os.spawnvpe(os.P_WAIT, command[0], command, env)
            found = pathlib.Path(log).read_text() if pathlib.Path(log).exists() else ""
            print(found, end="")
            return status or bool(found.strip())
        return os.spawnvpe(os.P_WAIT, command[0], command, env)


if __name__ == "__main__":
    sys.exit(main())
