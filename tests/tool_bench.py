# SPDX-License-Identifier: MIT
"""Tests of attn-bench: its ways of timing run and tell what they should. Nothing here looks
at how long anything took."""
import csv
import io

from tool_case import Case, devices, tools_json

LONG = 'softmax_fwd:f32,b1,hq2,hkv1,lq40,lk40,d32,causal'
HALF = 'softmax_fwd:f16,b1,hq2,hkv1,lq40,lk40,d32,causal'
SHORT = 'softmax_fwd:f32,b1,hq2,hkv1,lq1,lk1000,d32'
WAYS = ('repeated', 'single', 'blocks')
WORDS = ('device', 'problem', 'variant', 'vendor', 'plan', 'status')
NUMBERS = ('runs', 'readings', 'ms', 'ms_least', 'ms_most', 'gflop_s', 'tflop_s', 'gb_s',
           'kv_gb_s', 'of_first', 'of_peer', 'product_gflop_s', 'of_product', 'memory_gb_s',
           'of_memory', 'first_plan_ms', 'plan_ms', 'enqueue_us')


def one_of_each():
    """A device of each back end: the tool does not tell more of them apart."""
    return [d for d in devices() if d in ('host', 'cuda:0', 'opencl:0')]


class Bench(Case):
    def bench(self, *args, env=None):
        run = self.tool('attn-bench', '--min-time', '0.02', *args,
                        env={'ATTN_CUBLAS_LIB': '/nowhere', **(env or {})})
        self.assertEqual((run.status, run.err), (0, ''), args)
        return run

    def first(self, device):
        """The variant that the planner takes there."""
        return tools_json('attn-info', '--json', '--device', device, '--explain',
                          LONG)['variant']

    def check(self, report, device, way, cold):
        self.assertEqual((report['timing'], report['cold']), (way, cold))
        self.assertEqual([d['device'] for d in report['devices']], [device])
        self.assertTrue(report['devices'][0]['name'] and report['devices'][0]['driver'])
        if device.startswith('cuda'):
            self.assertGreater(report['devices'][0]['copy_gb_s'], 0)
            self.assertIn('/nowhere/libcublas', report['devices'][0]['product_absent'])
            self.assertNotIn('host_not_hidden', report['devices'][0])
        self.assertEqual([r['problem'] for r in report['results']], [LONG, SHORT])
        for r in report['results']:
            self.assertEqual(set(r), {*WORDS, *NUMBERS})
            self.assertEqual((r['device'], r['status']), (device, 'ATTN_OK'))
            self.assertTrue(r['plan'].startswith(f"{device.split(':')[0]}:{r['variant']}["))
            self.assertLessEqual(0, r['ms_least'])
            self.assertLessEqual(r['ms_least'], r['ms'])
            self.assertLessEqual(r['ms'], r['ms_most'])
            self.assertAlmostEqual(r['gflop_s'], r['tflop_s'] * 1000, delta=r['gflop_s'] / 1e6)
            self.assertEqual(r['enqueue_us'] is None, device == 'host')
            self.assertGreater(r['memory_gb_s'], 0)
            self.assertAlmostEqual(r['of_memory'], r['gb_s'] / r['memory_gb_s'],
                                   delta=r['of_memory'] / 1e6)
            self.assertIsNone(r['of_first'])
            self.assertIsNone(r['of_peer'])
            self.assertFalse(r['vendor'])
            self.assertEqual(r['readings'], {'single': 15, 'blocks': 2}.get(way, r['runs']))
        long, short = report['results']
        self.assertIsNone(long['kv_gb_s'])
        self.assertAlmostEqual(short['kv_gb_s'] * short['ms'], 2 * 4 * 1000 * 32 / 1e6)

    def test_every_way(self):
        for device in one_of_each():
            for way in WAYS:
                for cold in (False, True) if way == 'single' else (False,):
                    with self.subTest(device=device, way=way, cold=cold):
                        run = self.bench('--device', device, '--timing', way, '--variant',
                                         self.first(device), '--json', LONG, SHORT,
                                         *(['--cold'] if cold else []))
                        self.check(run.json(), device, way, cold)

    def test_what_a_device_is_timed_by(self):
        for device in one_of_each():
            kind = [d['kind'] for d in tools_json('attn-info', '--json')['devices']
                    if d['selector'] == device][0]
            run = self.bench('--device', device, '--variant', self.first(device), '--json',
                             LONG)
            self.assertEqual(run.json()['timing'], 'single' if kind == 'GPU' else 'repeated')

    def test_csv(self):
        run = self.bench('--device', 'host', '--csv', '--timing', 'single', '--cold', LONG,
                         SHORT, '--variant', 'softmax_fwd_tile')
        rows = list(csv.DictReader(io.StringIO(run.out)))
        self.assertEqual(set(rows[0]), {'device', 'name', 'driver', 'timing', 'cold',
                                        'problem', 'variant', 'plan', 'vendor',
                                        *NUMBERS})
        self.assertEqual([r['problem'] for r in rows], [LONG, SHORT])
        for r in rows:
            self.assertEqual((r['device'], r['timing'], r['cold'], r['variant']),
                             ('host', 'single', '1', 'softmax_fwd_tile'))
            self.assertGreater(float(r['memory_gb_s']), 0)

    def test_blocks_take_turns(self):
        args = ('--device', 'host', '--timing', 'blocks', '--cold', '--json', SHORT)
        both = ('--variant', 'softmax_fwd_tile', '--variant', 'softmax_fwd_split')
        found = self.bench(*args, *both).json()['results']
        self.assertEqual([r['of_first'] is None for r in found], [True, False])
        self.assertEqual([r['readings'] for r in found], [2, 2])
        three = self.bench(*args, *both, '--variant', 'softmax_fwd_reference')
        self.assertEqual([r['readings'] for r in three.json()['results']], [4, 2, 2])

    def test_two_devices(self):
        found = self.bench('--device', 'host', '--against', devices()[0], '--timing',
                           'blocks', '--variant', 'softmax_fwd_tile', '--json',
                           '--variant', self.first(devices()[0]), LONG).json()
        self.assertEqual([d['device'] for d in found['devices']], ['host', devices()[0]])
        self.assertEqual(found['results'][0]['device'], 'host')
        self.assertEqual(found['results'][-1]['device'], devices()[0])
        self.assertIsNotNone(found['results'][-1]['of_first'])

    def test_peer(self):
        """Beside ours, marked, the last to be timed; in blocks it takes turns with all."""
        if 'cuda:0' not in devices():
            self.refused(self.tool('attn-bench', '--device', 'host', '--peer', 'cudnn', LONG),
                         3, '--peer', 'softmax_fwd_cudnn')
            self.skipTest('no CUDA device')
        ours, peer = 'softmax_fwd_tile', 'softmax_fwd_cudnn'
        args = ('--device', 'cuda:0', '--variant', ours, '--peer', 'cudnn', HALF)
        for way, order in (('single', [ours, peer]), ('repeated', [ours, peer]),
                           ('blocks', [peer, ours])):
            report = self.bench(*args, '--json', '--timing', way).json()
            rows = report['results']
            self.assertEqual(report['peer'], peer)
            self.assertEqual([r['variant'] for r in rows], order)
            by = {r['variant']: r for r in rows}
            self.assertEqual((by[ours]['vendor'], by[peer]['vendor']), (False, True))
            self.assertIsNone(by[peer]['of_peer'])
            ratio = (by[ours]['of_first'] if way == 'blocks' else
                     by[peer]['ms'] / by[ours]['ms'])
            self.assertAlmostEqual(by[ours]['of_peer'], ratio, delta=ratio / 1e6)
        out = self.bench(*args).out
        for text in ('softmax_fwd_cudnn[d32,dv32,f16] (vendor)', 'of peer', '(vendor): computed'):
            self.assertIn(text, out)
        rows = list(csv.DictReader(io.StringIO(self.bench(*args, '--csv').out)))
        self.assertEqual([r['vendor'] for r in rows], ['0', '1'])
        # unasked it is not timed; what it does not take, it refuses, and ours stands alone
        found = self.bench('--device', 'cuda:0', '--json', HALF).json()
        self.assertNotIn(peer, [r['variant'] for r in found['results']])
        self.assertIsNone(found['peer'])
        run = self.tool('attn-bench', '--min-time', '0.02', '--device', 'cuda:0', '--peer',
                        'cudnn', '--variant', ours, '--json', LONG)
        rows = {r['variant']: r for r in run.json()['results']}
        self.assertIn('f16 and bf16', rows[peer]['why'])
        self.assertIsNone(rows[ours]['of_peer'])

    def test_table(self):
        out = self.bench('--device', 'host', '--timing', 'single', '--cold', SHORT).out
        for text in ('K, V GB/s', 'of product', 'plain read of memory', 'K and V from memory',
                     'single launches', 'softmax_fwd_tile['):
            self.assertIn(text, out)

    def test_refusals(self):
        with open(self.path('long.txt'), 'w') as file:
            file.write('#' * 4096 + '\n' + '#' * 4097)
        with open(self.path('cut.txt'), 'w') as file:
            file.write(LONG + '\0,causal')    # what is behind the 0 is not left out in silence
        for args, status, words in (
                (['--timing', 'thrice'], 2, ['--timing', 'thrice', 'blocks']),
                (['--against', 'abacus'], 2, ['abacus']),
                (['--peer', 'abacus'], 2, ['--peer', 'abacus', 'cudnn']),
                (['--peer', 'cudnn'], 3, ['--peer', 'softmax_fwd_cudnn']),
                (['--against', 'opencl:999'], 3, ['opencl:999']),
                (['--variant', 'softmax_fwd_magic'], 2, ['magic', 'softmax_fwd_tile']),
                (['--cases', '/dev/zero'], 2, ['/dev/zero, line 1', '4096']),
                (['--cases', 'long.txt'], 2, ['long.txt, line 2', '4096']),
                (['--cases', 'cut.txt'], 2, ['cut.txt, line 1', '4096']),
                (['--csv', '--json'], 2, ['--csv'])):
            with self.subTest(args):
                self.refused(self.tool('attn-bench', '--device', 'host', *args, LONG), status,
                             *words)
