#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the library and computes one layer of a real transformer on the best
# device of this machine, against what the model itself computed.
set -eu
cd "$(dirname "$0")"
tools/setup.sh
build/tools/attn-info
echo
echo "attention of one transformer layer (samples/README.md), with the model's own output:"
python3 samples/compare.py build/tools/attn-run
