# SPDX-License-Identifier: MIT
"""What the tests of the tools share: a folder to work in, and how a tool is run."""
import json
import math
import os
import random
import re
import subprocess
import tempfile
import unittest

from reference import Array, npy_bytes

TOOLS = ['']        # the folder with the built tools; set by whoever runs the tests


class Run:
    def __init__(self, done):
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        # Mesa says on stderr what it thinks of a kernel that it compiles, unless its own cache
        # has it (of CLBlast's: "Treating load_kernel_arg in control flow as uniform"). That is
        # no word of the tool's, and its words are what is compared.
        if isinstance(self.err, str):
            self.err = re.sub(r'(?m)^MESA: .*\n?', '', self.err)

    def json(self):
        return json.loads(self.out)


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix='attn-tools-')
        self.addCleanup(self.folder.cleanup)
        self.rng = random.Random(self.id())

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def tool(self, *args, env=None, **more):
        full = {k: x for k, x in os.environ.items() if k != 'ATTN_DEVICE'}
        full.update(env or {})
        args = [os.path.join(TOOLS[0], args[0]), *map(str, args[1:])]
        how = {'capture_output': True, 'text': True, **more}
        return Run(subprocess.run(args, cwd=self.folder.name, env=full, timeout=300,
                                  stdin=subprocess.DEVNULL, **how))

    def refused(self, run, status, *words):
        """One line on stderr, that status, those words, and nothing on stdout."""
        self.assertEqual(run.status, status, run.err)
        self.assertEqual(run.out, '')
        self.assertRegex(run.err, r'\Aattn-(info|run|validate|bench): [^\n]+\n\Z')
        for word in words:
            self.assertIn(word, run.err)

    def save(self, name, descr, shape, values):
        with open(self.path(name), 'wb') as file:
            file.write(npy_bytes(descr, shape, values))
        return name

    def random_array(self, size, spread=1.0):
        n = math.prod(size)
        return Array(size, [self.rng.gauss(0, spread) for _ in range(n)])


def tools_json(*args):
    done = subprocess.run([os.path.join(TOOLS[0], args[0]), *args[1:]], capture_output=True,
                          text=True)
    return json.loads(done.stdout)


def devices():
    return [d['selector'] for d in tools_json('attn-info', '--json')['devices']]
