# SPDX-License-Identifier: MIT
"""attn-run linear: results and gradients against the formula in Python's doubles, states
carried on, shapes, and what is refused."""
import math
import os

from reference import Array, from_file, npy_read, round_to
from tool_case import Case

NORM = {'f32': 2e-6, 'f16': 1e-3, 'bf16': 8e-3}


def phi(kind, x):
    return x if kind == 'identity' else max(x, 0.0) if kind == 'relu' else (
        x + 1 if x > 0 else math.exp(x))


def slope(kind, x):
    return 1.0 if kind == 'identity' or x > 0 else 0.0 if kind == 'relu' else math.exp(x)


class Formula:
    """Over all pairs; sums of everything that is asked for."""

    def __init__(self, q, k, v, feature='identity', causal=False, normalize=False, eps=1e-6,
                 scale=1.0, lens=None, state=None, z=None):
        self.q, self.k, self.v, self.feature, self.scale = q, k, v, feature, scale
        b_, hq, lq, d = q.size
        hkv, lk, dv = k.size[1], k.size[2], v.size[3]
        self.o, self.den, self.weights = [], [], {}
        self.dq, self.dk, self.dv = ([0.0] * math.prod(x.size) for x in (q, k, v))
        for b in range(b_):
            for h in range(hq):
                g = h // (hq // hkv)
                for l in range(lq):
                    row = [scale * phi(feature, x) for x in q.row(b, h, l)]
                    keys = min(lens[b] if lens else lk, l + 1 if causal else lk)
                    at = (b * hkv + g) * d
                    w = [math.fsum(x * phi(feature, y) for x, y in
                                   zip(row, k.row(b, g, j))) for j in range(keys)]
                    num = [math.fsum([x * v.row(b, g, j)[m] for j, x in enumerate(w)] +
                                     ([row[e] * state[(at + e) * dv + m] for e in range(d)]
                                      if state else [])) for m in range(dv)]
                    den = math.fsum(w + ([row[e] * z[at + e] for e in range(d)]
                                         if z else [])) + eps if normalize else 1.0
                    self.o += [x / den if den else 0.0 for x in num]
                    self.den.append(den)
                    self.weights[b, h, l] = w
        self.normalize, self.sizes = normalize, (b_, hq, hkv, lq, lk, d, dv)

    def backward(self, grad):
        b_, hq, hkv, lq, lk, d, dv = self.sizes
        for (b, h, l), w in self.weights.items():
            n, g = (b * hq + h) * lq + l, h // (hq // hkv)
            row, den = self.q.row(b, h, l), self.den[n]
            go = [x / den for x in grad.row(b, h, l)]
            c = -math.fsum(x * y for x, y in zip(go, self.o[n * dv:])) if self.normalize \
                else 0.0
            for j, weight in enumerate(w):
                at = (b * hkv + g) * lk + j
                key, value = self.k.row(b, g, j), self.v.row(b, g, j)
                s = math.fsum(x * y for x, y in zip(go, value)) + c
                for e in range(d):
                    self.dq[n * d + e] += (self.scale * slope(self.feature, row[e]) * s *
                                           phi(self.feature, key[e]))
                    self.dk[at * d + e] += (slope(self.feature, key[e]) * s * self.scale *
                                            phi(self.feature, row[e]))
                for m in range(dv):
                    self.dv[at * dv + m] += weight * go[m]
        return self.dq, self.dk, self.dv


class Linear(Case):
    def close(self, got, want, norm, name):
        error = math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(got, want)))
        self.assertEqual(len(got), len(want), name)
        self.assertLessEqual(error, norm * math.sqrt(math.fsum(y * y for y in want)), name)

    def files(self, kind='f32', layout='bhld', rank=4, b=2, hq=4, hkv=2, lq=5, lk=7, d=6,
              dv=4):
        """The arguments of a run, and what its arrays are in doubles."""
        args = ['attn-run', 'linear', '--device', 'host', '--type', kind, '--layout', layout]
        rounded = []
        for name, size in (('q', (b, hq, lq, d)), ('k', (b, hkv, lk, d)),
                           ('v', (b, hkv, lk, dv)), ('do', (b, hq, lq, dv))):
            shape, values = self.random_array(size).in_file_order(layout)
            values = [round_to('f32', x) for x in values]
            self.save(name + '.npy', '<f4', shape[4 - rank:], values)
            rounded.append(from_file(shape, [round_to(kind, x) for x in values], layout))
            if name != 'do':
                args += ['--' + name, name + '.npy']
        return args, rounded[:3], rounded[3]

    def read(self, name, layout='bhld'):
        descr, shape, values = npy_read(self.path(name))
        return descr, tuple(shape), from_file(shape, values, layout).values

    def good(self, *args):
        run = self.tool(*args)
        self.assertEqual((run.status, run.out, run.err), (0, '', ''))

    def test_types_and_layouts(self):
        for kind in ('f32', 'f16', 'bf16'):
            for layout in ('bhld', 'blhd'):
                with self.subTest(kind=kind, layout=layout):
                    args, arrays, grad = self.files(kind, layout)
                    grads = [x for n in 'qkv' for x in (f'--grad-{n}', f'd{n}.npy')]
                    self.good(*args, '--causal', '--feature-map', 'elu1', '--normalize',
                              '--out', 'o.npy', '--den', 'den.npy', '--grad-out', 'do.npy',
                              *grads)
                    want = Formula(*arrays, 'elu1', True, True)
                    descr, shape, o = self.read('o.npy', layout)
                    self.assertEqual(descr, '<f2' if kind == 'f16' else '<f4')
                    self.assertEqual(shape, (2, 4, 5, 4) if layout == 'bhld' else
                                     (2, 5, 4, 4))
                    self.close(o, want.o, NORM[kind], 'o')
                    descr, shape, den = npy_read(self.path('den.npy'))
                    self.assertEqual((descr, tuple(shape)), ('<f4', (2, 4, 5)))
                    self.close(den, want.den, NORM['f32'], 'den')
                    for n, values in zip('qkv', want.backward(grad)):
                        self.close(self.read(f'd{n}.npy', layout)[2], values,
                                   5 * NORM[kind], n)

    def test_options(self):
        args, arrays, _ = self.files(lq=9, lk=7)
        self.save('n.npy', '<i8', (2,), [3, 7])
        self.good(*args, '--feature-map', 'relu', '--normalize', '--eps', 0.5, '--scale', 2,
                  '--kv-lens', 'n.npy', '--out', 'o.npy')
        want = Formula(*arrays, 'relu', False, True, 0.5, 2.0, [3, 7])
        self.close(self.read('o.npy')[2], want.o, NORM['f32'], 'o')

    def test_states(self):
        """In and out, with gradients; the rank of the files does not matter to them."""
        args, arrays, grad = self.files(b=1, lk=5, rank=3)
        state = [round_to('f32', self.rng.gauss(0, 1)) for _ in range(2 * 6 * 4)]
        z = [round_to('f32', abs(self.rng.gauss(0, 1))) for _ in range(2 * 6)]
        self.save('s.npy', '<f4', (1, 2, 6, 4), state)
        self.save('z.npy', '<f4', (2, 6), z)
        args += ['--causal', '--feature-map', 'elu1', '--normalize', '--state-in', 's.npy',
                 '--z-in', 'z.npy']
        self.good(*args, '--out', 'o.npy', '--state-out', 's1.npy', '--z-out', 'z1.npy')
        want = Formula(*arrays, 'elu1', True, True, state=state, z=z)
        descr, shape, o = self.read('o.npy')
        self.assertEqual(shape, (4, 5, 4))
        self.close(o, want.o, NORM['f32'], 'o')
        q, k, v = arrays
        out = [state[(h * 6 + e) * 4 + m] +
               math.fsum(phi('elu1', k.row(0, h, j)[e]) * v.row(0, h, j)[m] for j in range(5))
               for h in range(2) for e in range(6) for m in range(4)]
        descr, shape, got = self.read('s1.npy')
        self.assertEqual((descr, shape), ('<f4', (1, 2, 6, 4)))
        self.close(got, out, NORM['f32'], 'state')
        self.assertEqual(tuple(npy_read(self.path('z1.npy'))[1]), (1, 2, 6))
        self.good(*args, '--grad-out', 'do.npy', '--grad-state-in', 'ds.npy', '--grad-z-in',
                  'dz.npy')
        want_s = [0.0] * 48
        for h in range(4):
            for l in range(5):
                n = h * 5 + l
                for e in range(6):
                    for m in range(4):
                        want_s[(h // 2 * 6 + e) * 4 + m] += (
                            phi('elu1', q.row(0, h, l)[e]) * grad.row(0, h, l)[m] /
                            want.den[n])
        self.close(npy_read(self.path('ds.npy'))[2], want_s, 1e-5, 'grad_state_in')
        self.assertNotIn('dq.npy', os.listdir(self.folder.name))

    def test_a_state_alone(self):
        args, _, _ = self.files()
        self.good(*args, '--state-out', 's.npy')
        self.assertEqual(tuple(npy_read(self.path('s.npy'))[1]), (2, 2, 6, 4))

    def test_rules(self):
        """A decay of 0 and betas of 0 say what they must; one number stands for all."""
        args, arrays, _ = self.files(lk=5)
        self.save('g.npy', '<f2', (1, 1, 1, 1), [0])
        self.save('b.npy', '<f8', (2, 2, 5, 1), [0] * 20)
        self.good(*args, '--causal', '--rule', 'gated', '--decay', 'g.npy', '--out', 'o.npy')
        self.close(self.read('o.npy')[2], Formula(*arrays, causal=True).o, NORM['f32'], 'o')
        self.good(*args, '--causal', '--rule', 'delta', '--beta', 'b.npy', '--out', 'o.npy')
        self.assertEqual(set(self.read('o.npy')[2]), {0.0})

    def test_repeat_and_json(self):
        args, _, _ = self.files()
        run = self.tool(*args, '--out', 'o.npy', '--repeat', 3)
        self.assertEqual((run.status, run.err), (0, ''))
        self.assertIn('host:linear_fwd_', run.out)
        all = self.tool(*args, '--out', 'o.npy', '--explain', '--json').json()
        self.assertIn(all['variant'], all['plan'])
        self.assertEqual(all['problem'], all['plan'].split(' ')[1])
        self.assertTrue(all['same_bits'])
        self.assertEqual(all['files']['out'], 'o.npy')
        grads = ['--grad-out', 'do.npy', '--grad-k', 'dk.npy']
        all = self.tool(*args, *grads, '--repeat', 2, '--json').json()
        self.assertIn('linear_bwd_', all['plan'])
        for name in ('linear_fwd_reference', 'linear_bwd_reference'):
            all = self.tool(*args, *grads, '--variant', name, '--json').json()
            self.assertEqual(name in all['plan'], '_bwd_' in name)

    def test_what_is_allowed_is_said(self):
        args, _, _ = self.files()
        for what in ('tf32', 'nondet', 'tf32+nondet'):
            run = self.tool(*args, '--out', 'o.npy', '--allow', what, '--explain', '--json')
            self.assertIn('allow=' + what, run.json()['problem'].split(','))

    def test_refusals(self):
        args, _, _ = self.files()
        o = ['--out', 'o.npy']
        self.save('z.npy', '<f4', (2, 2, 6), [0] * 24)
        self.save('s.npy', '<f4', (2, 2, 6, 4), [0] * 96)
        self.save('s3.npy', '<f4', (2, 2, 6, 3), [0] * 72)
        self.save('n.npy', '<i4', (2,), [3, 8])
        for status, words, more in (
                (2, ['--out is missing'], []),
                (2, ["'linear'"], [*o, 'linear']),
                (2, ['--feature-map'], [*o, '--feature-map', 'exp']),
                (2, ['--eps wants --normalize'], [*o, '--eps', 1]),
                (2, ['--den wants --normalize'], [*o, '--den', 'd.npy']),
                (2, ['--state-in wants --z-in'], [*o, '--normalize', '--state-in', 's.npy']),
                (2, ['--z-in wants'], [*o, '--z-in', 'z.npy']),
                (2, ['--rule wants --decay'], [*o, '--causal', '--rule', 'gated']),
                (2, ['--beta wants --rule'], [*o, '--beta', 'z.npy']),
                (2, ['rule = 2 without'], [*o, '--rule', 'delta', '--beta', 'b1.npy']),
                (2, ['s3.npy', '[2, 2, 6, 4]'], [*o, '--state-in', 's3.npy']),
                (2, ['n.npy', 'want 0 .. 7'], [*o, '--kv-lens', 'n.npy']),
                (2, ['--grad-out wants a gradient'], [*o, '--grad-out', 'do.npy']),
                (2, ['--grad-out is missing'], ['--grad-q', 'dq.npy']),
                (2, ['one file'], [*o, '--state-out', 'o.npy']),
                (2, ['softmax_fwd_tile', 'linear_fwd_chunk'],
                 [*o, '--variant', 'softmax_fwd_tile']),
                (3, ['linear_bwd_chunk', 'rule'],
                 [*o, '--causal', '--rule', 'delta', '--beta', 'b1.npy', '--grad-out',
                  'do.npy', '--grad-q', 'dq.npy']),
                (3, ['gradients of decay and beta'], [*o, '--grad-decay', 'g.npy'])):
            self.save('b1.npy', '<f4', (1, 1, 1, 1), [1])
            self.refused(self.tool(*args, *more), status, *words)
            self.assertNotIn('o.npy', os.listdir(self.folder.name))
        late = [x for x in args if x != 'linear'] + ['linear', *o]
        self.refused(self.tool(*late), 2, 'linear must stand first')
