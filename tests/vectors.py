#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs attn-run over folders of test vectors and compares with what they want.

usage: vectors.py TOOLS FOLDER... [--device SELECTOR] [--variants NAME,NAME...]
                  [--allow-unsupported]

TOOLS is the folder with the built tools. A FOLDER is a case (it has a case.json)
or holds cases. Without --variants the planner chooses; "all" is every variant that
says yes to the case, "turns" the best of them and one of the others, case by case
another. What is not supported fails, unless --allow-unsupported is given.

exit status: 0 all good, 1 a difference, 2 bad arguments, 77 no such device
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

from reference import npy_read

SKIPPED = 77
OUTPUTS = ('--out', '--lse', '--state-out', '--z-out')


def difference(out, want, rtol, atol):
    """None, or the first element that is out of bounds, in words."""
    _, shape, have = npy_read(out)
    _, want_shape, values = npy_read(want)
    if shape != want_shape:
        return f'{out.name} is {list(shape)}, want {list(want_shape)}'
    for i, (x, y) in enumerate(zip(have, values)):
        if not (x == y or abs(x - y) <= atol + rtol * abs(y)):
            index, rest = [], i
            for size in reversed(shape):
                index.insert(0, rest % size)
                rest //= size
            return f'{out.name}{index} is {x!r}, want {y!r}'
    return None


def run_case(tool, folder, device, variant):
    """'pass', 'unsupported' or 'FAIL', and why."""
    case = json.loads((folder / 'case.json').read_text())
    command = [str(tool), *case['command'], '--device', device]
    if variant:
        command += ['--variant', variant]
    with tempfile.TemporaryDirectory(prefix='attn-vectors-') as scratch:
        copy = pathlib.Path(scratch) / 'case'
        shutil.copytree(folder, copy)
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
        if done.returncode:
            word = 'unsupported' if done.returncode == 3 else 'FAIL'
            return word, f'exit status {done.returncode}: {done.stderr.strip()}'
        for c in case['compare']:
            reason = difference(copy / c['out'], copy / c['want'], c['rtol'], c['atol'])
            if reason:
                return 'FAIL', reason
    return 'pass', ''


def variants_of(tool, folder, device):
    """The names of all that say yes; [''] if the case is refused as a whole."""
    command = json.loads((folder / 'case.json').read_text())['command']
    done = subprocess.run([tool, *without_outputs(command), '--device', device, '--explain',
                           '--json'], cwd=folder, capture_output=True, text=True)
    listed = json.loads(done.stdout)['variants'] if done.stdout else []
    return [v['name'] for v in listed if v['applicable']] or ['']


def without_outputs(command):
    return [word for i, word in enumerate(command)
            if word not in OUTPUTS and (i == 0 or command[i - 1] not in OUTPUTS)]


def device_is_there(tools, device):
    done = subprocess.run([tools / 'attn-info', '--device', device], capture_output=True,
                          text=True)
    if done.returncode == 2:
        print(done.stderr.strip(), file=sys.stderr)
        sys.exit(2)
    if done.returncode:
        print(f'skipped: {done.stderr.strip()}')
    return done.returncode == 0


def find_cases(folders):
    cases = []
    for folder in folders:
        found = sorted(p.parent for p in folder.glob('**/case.json'))
        if not found:
            print(f'vectors.py: {folder}: no case.json in it', file=sys.stderr)
            sys.exit(2)
        cases += found
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('tools', type=pathlib.Path)
    parser.add_argument('folders', type=pathlib.Path, nargs='+')
    parser.add_argument('--device', default='host')
    parser.add_argument('--variants', default='')
    parser.add_argument('--allow-unsupported', action='store_true')
    args = parser.parse_args()
    tools = args.tools.resolve()
    cases = find_cases(args.folders)

    if not device_is_there(tools, args.device):
        return SKIPPED
    count = {'pass': 0, 'unsupported': 0, 'FAIL': 0}
    for turn, folder in enumerate(cases):
        variants = (variants_of(tools / 'attn-run', folder, args.device)
                    if args.variants in ('all', 'turns') else args.variants.split(','))
        if args.variants == 'turns' and len(variants) > 2:
            variants = [variants[0], variants[1 + turn % (len(variants) - 1)]]
        for variant in variants:
            word, why = run_case(tools / 'attn-run', folder, args.device, variant)
            if word == 'unsupported' and not args.allow_unsupported:
                word = 'FAIL'
            count[word] += 1
            print(f'{word:11} {folder.name} {args.device} {variant}'.rstrip() +
                  (f': {why}' if why else ''))
    print(f'{count["pass"]} passed, {count["FAIL"]} failed, {count["unsupported"]} skipped')
    return 1 if count['FAIL'] else 0


if __name__ == '__main__':
    sys.exit(main())
