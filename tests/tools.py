#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of attn-info, attn-run and attn-bench: the contract, bad input, results.

usage: tools.py TOOLS [unittest arguments]    TOOLS: the folder with the built tools

Results are held against a small reference in Python's doubles, on every device
that attn-info lists.
"""
import math
import os
import sys
import unittest

sys.dont_write_bytecode = True

from reference import npy_read, round_to
from tool_arrays import Arrays
from tool_bench import Bench
from tool_broken import Broken
from tool_case import TOOLS, Case, devices, tools_json
from tool_features import Features, Packed
from tool_gradients import Gradients
from tool_linear import Linear
from tool_refusals import Common, Refusals


class Info(Case):
    NUMBERS = ('compute_units', 'fast_bytes', 'max_group', 'subgroup', 'vector_width',
               'memory_bytes', 'max_alloc_bytes', 'clock_mhz', 'cudnn_version')
    PROBLEM = 'softmax_fwd:f32,b1,hq2,hkv2,lq16,lk16,d32,causal'

    def test_host_is_always_there(self):
        run = self.tool('attn-info', env={'ATTN_OPENCL_LIB': '/nowhere/libOpenCL.so'})
        self.assertEqual((run.status, run.err), (0, ''))
        self.assertRegex(run.out, r'(?m)^host +1 device$')
        self.assertRegex(run.out, r'(?m)^host$')
        self.assertRegex(run.out, r'(?m)^opencl +0 devices: \S')

    def test_a_library_that_is_none_of_opencl(self):
        run = self.tool('attn-info', env={'ATTN_OPENCL_LIB': 'libm.so.6'})
        self.assertRegex(run.out, r'(?m)^opencl +0 devices: (.*libm.so.6 has no '
                                  r'clGetPlatformIDs, so it is no OpenCL|.*built without)')

    def test_json(self):
        run = self.tool('attn-info', '--json')
        self.assertEqual((run.status, run.err), (0, ''))
        all = run.json()
        names = [b['name'] for b in all['backends']]
        self.assertIn('host', names)
        self.assertEqual(sum(b['devices'] for b in all['backends']), len(all['devices']))
        for b in all['backends']:
            self.assertTrue(b['devices'] or b['reason'], b)
        for d in all['devices']:
            self.assertIn(d['selector'].split(':')[0], names)
            self.assertIn(d['kind'], ('host', 'CPU', 'GPU', 'other'))
            self.assertTrue(d['name'])
            for number in self.NUMBERS:
                self.assertGreaterEqual(d[number], 0, number)

    def test_one_device(self):
        one = self.tool('attn-info', '--device', 'host', '--json').json()
        self.assertEqual([d['selector'] for d in one['devices']], ['host'])
        self.assertRegex(self.tool('attn-info', '--device', 'host').out, r'(?m)^host$')
        self.refused(self.tool('attn-info', '--device', 'abacus'), 2, 'abacus')
        self.refused(self.tool('attn-info', '--device', 'opencl:999'), 3, '--device',
                     'opencl:999')

    def test_device_from_the_environment(self):
        args = ('attn-info', '--explain', self.PROBLEM, '--json')
        run = self.tool(*args, env={'ATTN_DEVICE': 'host'})
        self.assertEqual(run.json()['device'], 'host')
        self.refused(self.tool('attn-info', '--explain', self.PROBLEM,
                               env={'ATTN_DEVICE': 'abacus'}), 2, 'ATTN_DEVICE', 'abacus')

    def test_explain(self):
        run = self.tool('attn-info', '--explain', self.PROBLEM, '--device', 'host')
        self.assertEqual((run.status, run.err), (0, ''))
        self.assertIn(self.PROBLEM, run.out)
        self.assertIn('host:softmax_fwd_', run.out)
        all = self.tool('attn-info', '--explain', self.PROBLEM, '--device', 'host',
                        '--json').json()
        self.assertEqual(all['problem'], self.PROBLEM)
        self.assertEqual(all['variant'], [v['name'] for v in all['variants']
                                          if v['applicable'] and not v['reason']][0])
        self.assertIn(all['variant'], all['explanation'])
        for v in all['variants']:
            self.assertTrue(v['applicable'] or v['reason'], v)
            self.assertIsInstance(v['traits'], list)
            self.assertIn(v['name'], all['explanation'])

    def test_explain_with_a_variant(self):
        run = self.tool('attn-info', '--explain', self.PROBLEM, '--device', 'host',
                        '--variant', 'softmax_fwd_reference')
        self.assertEqual(run.status, 0)
        self.assertIn('host:softmax_fwd_reference', run.out)
        run = self.tool('attn-info', '--explain', self.PROBLEM, '--device', 'host',
                        '--variant', 'softmax_fwd_magic')
        self.refused(run, 2, 'softmax_fwd_magic', 'softmax_fwd_reference')
        self.refused(self.tool('attn-info', '--variant', 'x'), 2, '--explain')

    def test_explain_what_nothing_takes(self):
        args = ('attn-info', '--explain', self.PROBLEM.replace('d32', 'd5000'), '--device',
                'host', '--variant', 'softmax_fwd_tile')
        run = self.tool(*args)
        self.assertEqual(run.status, 3)
        self.assertIn('d5000', run.out)
        self.assertRegex(run.err, r'\Aattn-info: [^\n]*softmax_fwd_tile: [^\n]*\n\Z')
        run = self.tool(*args, '--json')
        self.assertEqual(run.status, 3)
        self.assertIsNone(run.json()['variant'])

    def test_bad_problems(self):
        for text in ('', 'softmax_fwd', 'softmax_fwd:f32,b1', self.PROBLEM + ',magic',
                     self.PROBLEM.replace('hq2', 'hq3'), self.PROBLEM + ',causal'):
            self.refused(self.tool('attn-info', '--explain', text), 2, '--explain')


# --- attn-run: results ----------------------------------------------------------

class Softmax(Arrays):
    def test_types_and_layouts(self):
        for kind in ('f32', 'f16', 'bf16'):
            for layout in ('bhld', 'blhd'):
                for descr in ('<f4', '<f2', '<f8'):
                    with self.subTest(kind=kind, layout=layout, descr=descr):
                        self.compare(*self.arrays(), kind=kind, layout=layout, descr=descr)

    def test_features(self):
        for name, opts in (
                ('causal', {'causal': True}),
                ('causal, bottom-right', {'causal': True, 'align': 'bottom-right'}),
                ('causal behind a cache', {'causal': True, 'offset': 3}),
                ('negative offset', {'causal': True, 'offset': -2}),
                ('window', {'window': (1, 2)}),
                ('window, open left', {'window': (-1, 1)}),
                ('window, bottom-right', {'window': (2, 0), 'align': 'bottom-right'}),
                ('everything', {'causal': True, 'align': 'bottom-right', 'window': (3, 5),
                                'scale': 0.3, 'lens': [9, 4]}),
                ('scale', {'scale': 0.25}), ('scale 0', {'scale': 0}),
                ('negative scale', {'scale': -0.5}),
                ('lengths', {'lens': [9, 0]}),
                ('lengths in 64 bits', {'lens': [3, 9], 'lens_descr': '<i8'})):
            with self.subTest(name):
                self.compare(*self.arrays(), **opts)

    def test_shapes(self):
        for sizes in ({'lq': 1, 'lk': 1}, {'d': 5, 'dv': 3}, {'d': 33, 'dv': 17},
                      {'hq': 6, 'hkv': 1, 'lk': 130}, {'b': 3, 'hq': 1, 'hkv': 1},
                      {'lk': 0}, {'lq': 0}, {'b': 0}, {'hq': 0, 'hkv': 0}):
            for layout in ('bhld', 'blhd'):
                with self.subTest(sizes=sizes, layout=layout):
                    self.compare(*self.arrays(**sizes), layout=layout)

    def test_ranks(self):
        for layout in ('bhld', 'blhd'):
            with self.subTest(rank=3, layout=layout):
                self.compare(*self.arrays(b=1), rank=3, layout=layout)
        self.compare(*self.arrays(b=1, hq=1, hkv=1), rank=2)
        self.compare(*self.arrays(b=1, lq=1, lk=1), rank=2, layout='blhd')

    def test_ranks_may_differ(self):
        q, k, v = self.arrays(b=1, hq=1, hkv=1)
        args, _, _ = self.command(q, k, v)
        self.assertEqual(self.tool(*args).status, 0)
        want = npy_read(self.path('o.npy'))[2]
        self.save('q.npy', '<f4', q.size[2:], [round_to('f32', x) for x in q.values])
        self.assertEqual(self.tool(*args).status, 0)
        descr, shape, values = npy_read(self.path('o.npy'))
        self.assertEqual((descr, shape, values), ('<f4', q.size[2:], want))

    def test_every_device_and_variant(self):
        # A process and its compiler each: both layouts in one type, and CLBlast's products,
        # which are f32's whatever the type is, once.
        text = 'softmax_fwd:{},b2,hq4,hkv2,lq5,lk9,d8,causal,lse'
        for device in devices():
            for kind, layouts in (('f32', ('bhld', 'blhd')), ('f16', ('blhd',)),
                                  ('bf16', ('bhld',))):
                listed = tools_json('attn-info', '--json', '--device', device, '--explain',
                                    text.format(kind))['variants']
                for v in listed:
                    if not v['applicable'] or kind != 'f32' and 'clblast' in v['name']:
                        continue
                    for layout in layouts if 'clblast' not in v['name'] else ('blhd',):
                        with self.subTest(device=device, kind=kind, variant=v['name']):
                            self.compare(*self.arrays(), device=device, kind=kind,
                                         layout=layout, causal=True, variant=v['name'],
                                         rounded='rounded' in v['traits'])

    def test_rounding_once(self):
        """A double goes to the computing type in one step, not through f32."""
        for kind, bits in (('f16', 11), ('bf16', 8)):
            tie = 1 + 2.0 ** -bits
            values = [tie, tie + 2.0 ** -40, tie - 2.0 ** -40, -tie - 2.0 ** -40,
                      1 + 3 * 2.0 ** -bits, 2.0 ** -20 / 3, 0.0, -0.0]
            for name, v in (('q', [1.0] * 8), ('k', [1.0] * 8), ('v', values)):
                self.save(name + '.npy', '<f8', [1, 8], v)
            run = self.tool('attn-run', 'softmax', '--q', 'q.npy', '--k', 'k.npy', '--v',
                            'v.npy', '--out', 'o.npy', '--type', kind, '--device', 'host')
            self.assertEqual(run.status, 0, run.err)
            self.assertEqual(npy_read(self.path('o.npy'))[2],
                             [round_to(kind, x) for x in values])

    def test_rounding_out_of_range(self):
        big = [65520.0, 65519.9, 1e300, -1e300, math.inf, 1e-300, 5e-8, 1e-8]
        for name, v in (('q', [1.0] * 8), ('k', [1.0] * 8), ('v', big)):
            self.save(name + '.npy', '<f8', [1, 8], v)
        run = self.tool('attn-run', 'softmax', '--q', 'q.npy', '--k', 'k.npy', '--v',
                        'v.npy', '--out', 'o.npy', '--type', 'f16', '--device', 'host')
        self.assertEqual(run.status, 0, run.err)
        self.assertEqual(npy_read(self.path('o.npy'))[2],
                         [math.inf, 65504.0, math.inf, -math.inf, math.inf, 0.0, 2.0 ** -24,
                          0.0])

    def test_default_type_is_that_of_q(self):
        q, k, v = self.arrays()
        for descr, want in (('<f4', '<f4'), ('<f2', '<f2')):
            args, _, _ = self.command(q, k, v, descr=descr)
            at = args.index('--type')
            del args[at:at + 2]
            self.assertEqual(self.tool(*args).status, 0)
            self.assertEqual(npy_read(self.path('o.npy'))[0], want)

    def test_outputs_alone(self):
        q, k, v = self.arrays()
        args, _, _ = self.command(q, k, v)
        self.assertEqual(self.tool(*args).status, 0)
        both = [npy_read(self.path(n)) for n in ('o.npy', 'lse.npy')]
        for option, file, want in (('--lse', 'o.npy', both[0]),
                                   ('--out', 'lse.npy', both[1])):
            one = list(args)
            at = one.index(option)
            del one[at:at + 2]
            for name in ('o.npy', 'lse.npy'):
                os.remove(self.path(name))
            self.assertEqual(self.tool(*one).status, 0)
            self.assertEqual(npy_read(self.path(file)), want)
            self.assertEqual(sum(n in ('o.npy', 'lse.npy')
                                 for n in os.listdir(self.folder.name)), 1)
            self.assertEqual(self.tool(*args).status, 0)

    def test_poison_behind_the_lengths(self):
        q, k, v = self.arrays()
        args, _, _ = self.command(q, k, v, lens=[4, 6])
        self.assertEqual(self.tool(*args).status, 0)
        want = npy_read(self.path('o.npy'))[2]
        for name, array in (('k', k), ('v', v)):
            values = [round_to('f32', x) for x in array.values]
            b, h, l, d = array.size
            for n in range(b * h):
                for j in range([4, 6][n // h], l):
                    values[(n * l + j) * d:(n * l + j + 1) * d] = [math.nan] * d
            self.save(name + '.npy', '<f4', array.size, values)
        self.assertEqual(self.tool(*args).status, 0)
        self.assertEqual(npy_read(self.path('o.npy'))[2], want)

    def test_pipes(self):
        q, k, v = self.arrays()
        args, _, _ = self.command(q, k, v)
        self.assertEqual(self.tool(*args).status, 0)
        with open(self.path('o.npy'), 'rb') as file:
            want = file.read()
        args[args.index('o.npy')] = '/dev/stdout'
        run = self.tool(*args, text=False)
        self.assertEqual((run.status, run.out), (0, want))


# --- attn-run: repeated runs, explanations --------------------------------------

class Reports(Arrays):
    def test_repeat(self):
        for device in devices():
            with self.subTest(device):
                args, _, _ = self.command(*self.arrays(), device=device, layout='blhd',
                                          lens=[9, 5])
                self.assertEqual(self.tool(*args).status, 0)
                plain = [npy_read(self.path(n)) for n in ('o.npy', 'lse.npy')]
                run = self.tool(*args, '--repeat', 5)
                self.assertEqual((run.status, run.err), (0, ''))
                self.assertRegex(run.out, r'(?m)^median .* ms of 5 runs')
                self.assertIn('softmax_fwd:f32', run.out)
                self.assertEqual([npy_read(self.path(n)) for n in ('o.npy', 'lse.npy')],
                                 plain)

    def test_json(self):
        for device in devices():
            args, _, _ = self.command(*self.arrays(), device=device)
            run = self.tool(*args, '--json', '--repeat', 4)
            self.assertEqual((run.status, run.err), (0, ''))
            all = run.json()
            self.assertEqual(all['device'], device)
            self.assertTrue(all['plan'].startswith(device.split(':')[0] + ':softmax_fwd_'))
            self.assertEqual((all['runs'], len(all['times_ns'])), (4, 4))
            self.assertLessEqual(min(all['times_ns']), all['median_ns'])
            self.assertLessEqual(all['median_ns'], max(all['times_ns']))
            self.assertIs(all['same_bits'], True)
            self.assertEqual(all['files'], {'q': 'q.npy', 'k': 'k.npy', 'v': 'v.npy',
                                            'out': 'o.npy', 'lse': 'lse.npy'})
            self.assertEqual(self.tool(*args, '--json').json()['runs'], 1)

    def test_json_of_odd_names(self):
        args, _, _ = self.command(*self.arrays())
        name = b'o\xff"\\\xc3\xa9.npy'
        args[args.index('o.npy')] = os.fsdecode(name)
        run = self.tool(*args, '--json')
        self.assertEqual(run.status, 0, run.err)
        self.assertEqual(run.json()['files']['out'], 'o\ufffd"\\\u00e9.npy')
        self.assertTrue(os.path.exists(os.path.join(os.fsencode(self.folder.name), name)))

    def test_explain(self):
        args, _, _ = self.command(*self.arrays(), causal=True)
        only = [a for a in args if a not in ('--out', 'o.npy', '--lse', 'lse.npy')]
        run = self.tool(*only, '--explain')
        self.assertEqual((run.status, run.err), (0, ''))
        self.assertIn('softmax_fwd:f32,b2,hq4,hkv2,lq5,lk9,d8,causal', run.out)
        self.assertNotIn('o.npy', os.listdir(self.folder.name))
        self.refused(self.tool(*only, '--explain', '--repeat', 2), 2, '--repeat')
        run = self.tool(*args, '--explain')
        self.assertEqual(run.status, 0)
        self.assertIn('host:softmax_fwd_', run.out)
        self.assertIn('o.npy', os.listdir(self.folder.name))
        all = self.tool(*args, '--explain', '--json').json()
        self.assertIn(all['variant'], all['plan'])
        self.assertIn(all['plan'].split(' ')[0], all['explanation'])
        self.assertIn(all['plan'].split(' ')[1], all['explanation'])

    def test_variants(self):
        args, _, _ = self.command(*self.arrays())
        run = self.tool(*args, '--variant', 'softmax_fwd_reference', '--json')
        self.assertIn('softmax_fwd_reference', run.json()['plan'])
        for more in ([], ['--json'], ['--explain'], ['--repeat', '2']):
            self.refused(self.tool(*args, '--variant', 'softmax_fwd_magic', *more), 2,
                         'softmax_fwd_magic', 'softmax_fwd_reference')

    def test_a_variant_that_says_no(self):
        """Every device's variants, against problems some of them refuse."""
        for device in devices():
            args, _, _ = self.command(*self.arrays(d=300, dv=300, lk=3), device=device)
            listed = tools_json('attn-info', '--json', '--device', device, '--explain',
                                'softmax_fwd:f32,b2,hq4,hkv2,lq5,lk3,d300,lse')['variants']
            for v in listed:
                if not v['applicable']:
                    self.refused(self.tool(*args, '--variant', v['name']), 3, v['name'],
                                 v['reason'])


if __name__ == '__main__':
    if len(sys.argv) < 2 or not os.path.isdir(sys.argv[1]):
        print(__doc__.split('\n\n')[1], file=sys.stderr)
        sys.exit(2)
    TOOLS[0] = os.path.abspath(sys.argv.pop(1))
    unittest.main()
