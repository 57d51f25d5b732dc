# SPDX-License-Identifier: MIT
"""attn-run with gradients: results against the formula in Python's doubles, shapes, and
what is refused."""
import math
import os

from reference import Array, from_file, kept, npy_read, round_to
from tool_arrays import Arrays

NORM = {'f32': 1e-5, 'f16': 3e-3, 'bf16': 2e-2}


def backward(q, k, v, grad_o, grad_lse, causal=False, bias=None, sinks=None, dropout=None):
    """Flat lists dQ, dK, dV, dBias [Hq, Lq, Lk] summed over the batch, dSinks.
    `dropout` is p, seed and offset."""
    b_, hq, lq, d = q.size
    _, hkv, lk, dv = v.size
    scale = 1 / math.sqrt(d)
    dq, dk, dv_ = ([0.0] * math.prod(x.size) for x in (q, k, v))
    db, ds_ = [0.0] * (hq * lq * lk), [0.0] * hq
    for b in range(b_):
        for h in range(hq):
            kvh = h // (hq // hkv)
            for i in range(lq):
                row, g = q.row(b, h, i), grad_o.row(b, h, i)
                n = (b * hq + h) * lq + i
                s = [scale * math.fsum(x * y for x, y in zip(row, k.row(b, kvh, j))) +
                     (bias[(h * lq + i) * lk + j] if bias else 0)
                     if not causal or j <= i else -math.inf for j in range(lk)]
                top = max(s + ([sinks[h]] if sinks else []))
                total = math.fsum(math.exp(x - top) for x in s)
                total += math.exp(sinks[h] - top) if sinks else 0
                p = [math.exp(x - top) / total for x in s]
                keeps = [kept(*dropout, b * hq + h, i, j) if dropout else 1
                         for j in range(lk)]
                dp = [keeps[j] * math.fsum(x * y for x, y in zip(g, v.row(b, kvh, j)))
                      for j in range(lk)]
                delta = math.fsum(x * y for x, y in zip(p, dp))
                delta -= grad_lse[n] if grad_lse else 0
                if sinks:
                    ds_[h] -= math.exp(sinks[h] - top) / total * delta
                for j in range(lk):
                    ds = p[j] * (dp[j] - delta)
                    db[(h * lq + i) * lk + j] += ds
                    at = (b * hkv + kvh) * lk + j
                    for e in range(d):
                        dq[n * d + e] += scale * ds * k.row(b, kvh, j)[e]
                        dk[at * d + e] += scale * ds * row[e]
                    for e in range(dv):
                        dv_[at * dv + e] += keeps[j] * p[j] * g[e]
    return dq, dk, dv_, db, ds_


class Gradients(Arrays):
    def close(self, kind, got, want, name):
        error = math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(got, want)))
        self.assertEqual(len(got), len(want))
        self.assertLessEqual(error, NORM[kind] * math.sqrt(math.fsum(y * y for y in want)),
                             name)

    def files(self, kind='f32', layout='bhld', rank=4, **sizes):
        """The arguments of a run, and what its arrays are in doubles."""
        arrays = self.arrays(**sizes)
        args, rounded, _ = self.command(*arrays, kind=kind, layout=layout, rank=rank)
        q, v = arrays[0].size, arrays[2].size
        grad = self.random_array((q[0], q[1], q[2], v[3]))
        shape, values = grad.in_file_order(layout)
        values = [round_to('f32', x) for x in values]
        self.save('do.npy', '<f4', shape[4 - rank:], values)
        grad = from_file(shape, [round_to(kind, x) for x in values], layout)
        grads = ['--grad-out', 'do.npy']
        for name in 'qkv':
            grads += [f'--grad-{name}', f'd{name}.npy']
        return args, grads, rounded, grad

    def check_all(self, kind, layout, rounded, want):
        for name, like, values in zip('qkv', rounded, want):
            descr, shape, got = npy_read(self.path(f'd{name}.npy'))
            in_file = like.in_file_order(layout)[0]
            self.assertEqual(descr, '<f2' if kind == 'f16' else '<f4')
            self.assertEqual(tuple(shape), tuple(in_file[4 - len(shape):]))
            if kind == 'bf16':
                self.assertEqual(got, [round_to('bf16', x) for x in got])
            self.close(kind, from_file(in_file, got, layout).values, values, name)

    def test_types_and_layouts(self):
        for kind in ('f32', 'f16', 'bf16'):
            for layout in ('bhld', 'blhd'):
                with self.subTest(kind=kind, layout=layout):
                    args, grads, rounded, grad = self.files(kind, layout, dv=6)
                    run = self.tool(*args, '--causal', 'top-left', *grads)
                    self.assertEqual((run.status, run.out, run.err), (0, '', ''))
                    want = backward(*rounded, grad, None, causal=True)
                    self.check_all(kind, layout, rounded, want)

    def test_dropout(self):
        for more in ([], ['--repeat', '2']):    # two ways to run, with the same numbers
            args, grads, rounded, grad = self.files()
            run = self.tool(*args, *grads, '--dropout', '0.4', '--seed', '81985529216486895',
                            '--dropout-offset', '12884901890', *more)
            self.assertEqual((run.status, run.err), (0, ''))
            want = backward(*rounded, grad, None,
                            dropout=(0.4, 81985529216486895, 12884901890))
            self.check_all('f32', 'bhld', rounded, want)

    def test_lower_ranks(self):
        args, grads, rounded, grad = self.files(rank=3, b=1)
        self.assertEqual(self.tool(*args, *grads).status, 0)
        self.check_all('f32', 'bhld', rounded, backward(*rounded, grad, None))

    def test_bias_sinks_and_lse(self):
        args, grads, rounded, grad = self.files()
        bias = [round_to('f32', self.rng.gauss(0, 1)) for _ in range(4 * 5 * 9)]
        sinks = [round_to('f32', self.rng.gauss(0, 1)) for _ in range(4)]
        lse = [round_to('f32', self.rng.gauss(0, 1)) for _ in range(2 * 4 * 5)]
        self.save('b.npy', '<f4', (4, 5, 9), bias)
        self.save('s.npy', '<f4', (4,), sinks)
        self.save('dlse.npy', '<f4', (2, 4, 5), lse)
        run = self.tool(*args, *grads, '--bias', 'b.npy', '--sinks', 's.npy', '--grad-lse',
                        'dlse.npy', '--grad-bias', 'db.npy', '--grad-sinks', 'ds.npy')
        self.assertEqual((run.status, run.err), (0, ''))
        want = backward(*rounded, grad, lse, bias=bias, sinks=sinks)
        self.check_all('f32', 'bhld', rounded, want)
        descr, shape, got = npy_read(self.path('db.npy'))
        self.assertEqual((descr, tuple(shape)), ('<f4', (4, 5, 9)))
        self.close('f32', got, want[3], 'bias')
        descr, shape, got = npy_read(self.path('ds.npy'))
        self.assertEqual((descr, tuple(shape)), ('<f4', (4,)))
        self.close('f32', got, want[4], 'sinks')

    def test_what_is_asked_for_alone(self):
        """No --out, one gradient; the same bits as all together."""
        args, grads, _, _ = self.files()
        self.assertEqual(self.tool(*args, *grads).status, 0)
        with open(self.path('dk.npy'), 'rb') as file:
            want = file.read()
        for name in ('o.npy', 'lse.npy', 'dq.npy', 'dk.npy', 'dv.npy'):
            os.remove(self.path(name))
        at = args.index('--out')
        args = args[:at] + args[at + 4:]
        self.assertEqual(self.tool(*args, *grads[:2], '--grad-k', 'dk.npy').status, 0)
        with open(self.path('dk.npy'), 'rb') as file:
            self.assertEqual(file.read(), want)
        for name in ('o.npy', 'lse.npy', 'dq.npy', 'dv.npy'):
            self.assertFalse(os.path.exists(self.path(name)))

    def test_repeat_explain_and_json(self):
        args, grads, rounded, grad = self.files()
        run = self.tool(*args, *grads, '--repeat', '5', '--json', '--explain')
        self.assertEqual(run.status, 0, run.err)
        report = run.json()
        self.assertEqual((report['runs'], report['same_bits']), (5, True))
        self.assertIn('softmax_bwd_tile', report['plan'])
        self.assertEqual(report['files']['grad_k'], 'dk.npy')
        self.check_all('f32', 'bhld', rounded, backward(*rounded, grad, None))
        for variant in ('softmax_bwd_reference', 'softmax_fwd_reference'):
            run = self.tool(*args, *grads, '--repeat', '2', '--variant', variant)
            self.assertEqual(run.status, 0, run.err)
            self.assertIn('softmax_bwd', run.out)
            self.assertEqual(variant in run.out, 'bwd' in variant)

    def test_packed_sequences(self):
        """Tokens of no sequence have zeros in the files."""
        args, grads, _, _ = self.files(b=1, lq=7, lk=7)
        self.save('cu.npy', '<i4', (3,), [1, 4, 6])
        run = self.tool(*args, *grads, '--cu-q', 'cu.npy', '--cu-k', 'cu.npy')
        self.assertEqual(run.status, 0, run.err)
        for name, heads in zip('qkv', (4, 2, 2)):
            _, shape, got = npy_read(self.path(f'd{name}.npy'))
            rows = Array((1, heads, 7, 8), got)
            for h in range(heads):
                self.assertEqual(rows.row(0, h, 0) + rows.row(0, h, 6), [0.0] * 16)
                self.assertNotEqual(rows.row(0, h, 2), [0.0] * 8)

    def test_refusals(self):
        args, grads, _, _ = self.files()
        self.save('long.npy', '<f4', (2, 4, 6, 8), [0] * 384)
        self.save('int.npy', '<i4', (2, 4, 5, 8), [0] * 320)
        self.save('t.npy', '<i4', (2, 1), [0, 1])
        for more, status, words in (
                (grads[:2], 2, ('--grad-out wants a gradient to write',)),
                (grads[2:], 2, ('--grad-out is missing',)),
                (['--grad-out', 'long.npy', *grads[2:]], 2,
                 ('long.npy: shape [2, 4, 6, 8], want that of the result, [2, 4, 5, 8]',)),
                (['--grad-out', 'int.npy', *grads[2:]], 2, ('int.npy: type <i4',)),
                (['--grad-out', 'none.npy', *grads[2:]], 2, ('none.npy',)),
                ([*grads, '--grad-bias', 'db.npy'], 2, ('--grad-bias wants --bias',)),
                ([*grads, '--grad-sinks', 'ds.npy'], 2, ('--grad-sinks wants --sinks',)),
                ([*grads[:4], '--grad-k', 'dq.npy'], 2, ('are one file; want two',)),
                ([*grads, '--variant', 'softmax_bwd_nothing'], 2, ('softmax_bwd_tile',)),
                ([*grads, '--block-table', 't.npy', '--page-size', '9'], 3, ('pages',))):
            with self.subTest(more=more):
                self.refused(self.tool(*args, *more), status, *words)
                self.assertFalse(os.path.exists(self.path('dq.npy')))
