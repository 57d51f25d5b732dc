# SPDX-License-Identifier: MIT
"""attn-run with the files of single features: results, shapes, what is refused."""
import math
import os

from reference import Array, Broadcast, attention, from_file, npy_read, round_to
from tool_arrays import Arrays

ORACLE = 'softmax_fwd_reference'      # of the host: it takes everything


class Features(Arrays):
    def terms(self, shape, spread=1.0, descr='<f4'):
        """A file of random numbers, and what it is to the reference."""
        n = math.prod(shape)
        values = [round_to('f16' if descr == '<f2' else 'f32', self.rng.gauss(0, spread))
                  for _ in range(n)]
        return (descr, shape, values), Broadcast(shape, values)

    def mask(self, shape):
        values = [self.rng.random() < 0.7 for _ in range(math.prod(shape))]
        return ('|b1', shape, values), Broadcast(shape, values)

    def both(self, name, files, reference, **opts):
        """With the oracle, and with what the planner chooses if it takes it."""
        for variant in (ORACLE, None):
            if variant:
                opts['variant'] = variant
            else:
                opts.pop('variant', None)
            with self.subTest(name, variant=variant):
                self.compare(*self.arrays(), files=files, reference=reference, **opts)

    def test_biases(self):
        for shape in ((), (9,), (5, 9), (1, 9), (5, 1), (4, 5, 9), (1, 5, 9), (2, 4, 5, 9),
                      (2, 1, 1, 9), (1, 4, 5, 1)):
            file, bias = self.terms(shape)
            self.both(f'bias {shape}', {'bias': file}, {'bias': bias})

    def test_biases_of_types(self):
        for descr in ('<f4', '<f2', '<f8'):
            for kind in ('f32', 'f16', 'bf16'):
                for layout in ('bhld', 'blhd'):      # biases do not follow the layout
                    file, bias = self.terms((4, 5, 9), 2, descr)
                    self.both(f'{descr} {kind}', {'bias': file}, {'bias': bias}, kind=kind,
                              layout=layout)

    def test_masks(self):
        for shape in ((9,), (5, 9), (4, 5, 9), (2, 4, 5, 9), (2, 1, 1, 9)):
            for layout in ('bhld', 'blhd'):
                file, mask = self.mask(shape)
                self.both(f'mask {shape}', {'mask': file}, {'mask': mask}, layout=layout)

    def test_a_hidden_row(self):
        values = [i // 9 != 3 for i in range(45)]
        self.both('row', {'mask': ('|b1', (5, 9), values)},
                  {'mask': Broadcast((5, 9), values)})
        values = [-math.inf if i // 9 == 3 else 0.5 for i in range(45)]
        self.both('row', {'bias': ('<f4', (5, 9), values)},
                  {'bias': Broadcast((5, 9), values)})

    def test_slopes_and_sinks(self):
        for shape in ((4,), (2, 4), (1, 4)):
            for descr in ('<f4', '<f2', '<f8'):
                file, slopes = self.terms(shape, 0.5, descr)
                full = Broadcast((shape[0] if len(shape) == 2 else 1, 4, 1, 1),
                                 slopes.values)
                self.both(f'alibi {shape} {descr}', {'alibi': file}, {'alibi': full},
                          align='bottom-right')
        file, sinks = self.terms((4,), 2)
        self.both('sinks', {'sinks': file}, {'sinks': sinks.values})
        self.both('sinks and a window', {'sinks': file}, {'sinks': sinks.values},
                  window=(1, 0))

    def test_lengths_and_offsets(self):
        for descr in ('<i4', '<i8'):
            q_lens = ('q-lens', (descr, (2,), [3, 0]), {'q_lens': [3, 0]})
            offset = ('offset', (descr, (2,), [-2, 5]), {'offset': [-2, 5]})
            self.both('q-lens', {q_lens[0]: q_lens[1]}, q_lens[2])
            self.both('q-lens, bottom-right', {q_lens[0]: q_lens[1]}, q_lens[2], lens=[9, 4],
                      causal=True, align='bottom-right')
            self.both('offsets', {offset[0]: offset[1]}, offset[2], causal=True)
            self.both('all', {q_lens[0]: q_lens[1], offset[0]: offset[1]},
                      {**q_lens[2], **offset[2]}, window=(2, 1), lens=[7, 9], layout='blhd')

    def test_softcap_and_splits(self):
        for cap in (0.5, 30):
            self.both('cap', {}, {}, softcap=cap)
        self.both('all in one', {}, {}, splits=1)
        for splits in (3, 100):   # the planner then takes a variant that makes pieces
            with self.subTest(splits=splits):
                self.compare(*self.arrays(), files={}, reference={}, splits=splits)

    def test_dropout(self):
        for p in (0.1, 0.5):
            self.both(f'dropout {p}', {}, {}, dropout=p)
            self.both('seed', {}, {}, dropout=p, seed=0x123456789abcdef,
                      **{'dropout-offset': 0x7000000003})
        self.both('causal', {}, {}, dropout=0.3, seed=5, causal=True, align='bottom-right')
        self.both('none', {}, {}, dropout=0)

    def test_everything(self):
        bias, b = self.terms((4, 1, 9))
        mask, m = self.mask((5, 9))
        slopes, a = self.terms((4,), 0.2)
        sinks, s = self.terms((4,))
        files = {'bias': bias, 'mask': mask, 'alibi': slopes, 'sinks': sinks,
                 'q-lens': ('<i8', (2,), [5, 2])}
        meaning = {'bias': b, 'mask': m, 'alibi': Broadcast((1, 4, 1, 1), a.values),
                   'sinks': s.values, 'q_lens': [5, 2]}
        for kind in ('f32', 'f16', 'bf16'):
            self.both(kind, files, meaning, kind=kind, lens=[9, 3], causal=True,
                      align='bottom-right', softcap=3, scale=0.4)

    def test_rows_past_the_length_are_zero(self):
        file = {'q-lens': ('<i4', (2,), [2, 5])}
        for device in ('host', *((d,) if (d := self.opencl()) else ())):
            args, _, _ = self.command(*self.arrays(), files=file, device=device,
                                      **({'variant': ORACLE} if device == 'host' else {}))
            for more in ([], ['--repeat', '3']):
                run = self.tool(*args, *more)
                if device != 'host' and run.status == 3:
                    continue
                self.assertEqual(run.status, 0, run.err)
                o, lse = (npy_read(self.path(n))[2] for n in ('o.npy', 'lse.npy'))
                for h in range(4):
                    self.assertEqual(o[(h * 5 + 2) * 8:(h + 1) * 40], [0.0] * 24)
                    self.assertEqual(lse[h * 5 + 2:(h + 1) * 5], [0.0] * 3)

    def opencl(self):
        listed = self.tool('attn-info', '--json').json()['devices']
        return next((d['selector'] for d in listed if d['selector'] != 'host'), None)

    def test_json_names_the_files(self):
        file, _ = self.terms((5, 9))
        args, _, _ = self.command(*self.arrays(), files={'bias': file}, variant=ORACLE)
        files = self.tool(*args, '--json').json()['files']
        self.assertEqual(files['bias'], 'bias.npy')
        run = self.tool(*args, '--explain', '--json').json()
        self.assertIn('bias=f32', run['problem'])

    def test_what_is_allowed_is_said(self):
        args, _, _ = self.command(*self.arrays(), variant=ORACLE)
        self.assertIn('allow=tf32',
                      self.tool(*args, '--allow', 'tf32', '--json', '--explain').json()['problem'])


class Packed(Arrays):
    """Sequences packed one behind the other, and pages, against each sequence alone."""

    def pieces(self, array, cu):
        _, heads, tokens, d = array.size
        for first, end in zip(cu, cu[1:]):
            yield Array((1, heads, end - first, d),
                        [x for h in range(heads) for i in range(first, end)
                         for x in array.row(0, h, i)])

    def rounded(self, array):
        return Array(array.size, [round_to('f32', x) for x in array.values])

    def check_packed(self, q, k, v, cu_q, cu_k, layout, rank, **opts):
        files = {'cu-q': ('<i4', (len(cu_q),), cu_q), 'cu-k': ('<i8', (len(cu_k),), cu_k)}
        args, _, reference = self.command(q, k, v, layout=layout, rank=rank, files=files,
                                          variant=ORACLE, **opts)
        run = self.tool(*args)
        self.assertEqual((run.status, run.err), (0, ''))
        _, shape, values = npy_read(self.path('o.npy'))
        lse_shape, lse = npy_read(self.path('lse.npy'))[1:]
        self.assertEqual(lse_shape, (1, q.size[1], q.size[2])[4 - rank:])
        got = from_file(shape, values, layout)
        self.assertEqual(got.size, q.size[:3] + v.size[3:])
        q, k, v = map(self.rounded, (q, k, v))
        parts = zip(self.pieces(q, cu_q), self.pieces(k, cu_k), self.pieces(v, cu_k))
        for (one, keys, vals), first in zip(parts, cu_q):
            want, want_lse, _ = attention(one, keys, vals, **reference)
            _, heads, length, dv = want.size
            for h in range(heads):
                for i in range(length):
                    for x, y in zip(got.row(0, h, first + i), want.row(0, h, i)):
                        self.assertAlmostEqual(x, y, delta=2e-5)
                    x, y = lse[h * q.size[2] + first + i], want_lse[h * length + i]
                    self.assertTrue(x == y or abs(x - y) < 2e-5, (x, y))
        for i in [*range(cu_q[0]), *range(cu_q[-1], q.size[2])]:
            for h in range(q.size[1]):
                self.assertEqual(got.row(0, h, i), [0.0] * v.size[3])
                self.assertEqual(lse[h * q.size[2] + i], 0.0)

    def test_packed(self):
        for layout, rank in (('bhld', 4), ('blhd', 4), ('blhd', 3)):
            for opts in ({}, {'causal': True, 'align': 'bottom-right'},
                         {'causal': True}, {'window': (1, 1)}):
                with self.subTest(layout=layout, rank=rank, opts=opts):
                    q = self.random_array((1, 4, 16, 8), 2)
                    k, v = (self.random_array((1, 2, 20, d)) for d in (8, 5))
                    self.check_packed(q, k, v, [1, 1, 5, 12], [0, 3, 3, 18], layout, rank,
                                      **opts)
        q = self.random_array((1, 2, 4, 8))
        self.check_packed(q, q, q, [0], [0], 'bhld', 4)     # no sequence at all

    def test_packed_on_one_side(self):
        """Queries packed over a cache with lengths: as each batch alone."""
        q = self.random_array((1, 4, 6, 8), 2)
        k, v = (self.random_array((3, 2, 7, 8)) for _ in range(2))
        cu, lens = [0, 2, 3, 6], [7, 0, 4]
        args, _, _ = self.command(q, k, v, files={'cu-q': ('<i4', (4,), cu)}, lens=lens,
                                  causal=True, align='bottom-right', variant=ORACLE)
        self.assertEqual(self.tool(*args).status, 0)
        got = from_file(*npy_read(self.path('o.npy'))[1:], 'bhld')
        for b, one in enumerate(self.pieces(self.rounded(q), cu)):
            keys, vals = (Array((1, 2, 7, 8), self.rounded(x).values[b * 112:(b + 1) * 112])
                          for x in (k, v))
            want, _, _ = attention(one, keys, vals, causal=True, align='bottom-right',
                                   lens=[lens[b]])
            for h in range(4):
                for i in range(one.size[2]):
                    for x, y in zip(got.row(0, h, cu[b] + i), want.row(0, h, i)):
                        self.assertAlmostEqual(x, y, delta=2e-5)

    def test_pages(self):
        table, lens, size = [[3, 0, 9], [1, 4, 2]], [6, 9], 3
        table[0][2] = -1                # not needed for 6 keys
        for layout in ('bhld', 'blhd'):
            q, k, v = (self.random_array(s) for s in ((2, 4, 5, 8), (5, 2, size, 8),
                                                      (5, 2, size, 4)))
            for array in (k, v):        # what no batch uses
                array.values = [x for x in array.values]
            files = {'block-table': ('<i8', (2, 3), [n for row in table for n in row])}
            with self.subTest(layout=layout):
                args, _, _ = self.command(q, k, v, layout=layout, files=files, lens=lens,
                                          causal=True, align='bottom-right', variant=ORACLE,
                                          **{'page-size': size})
                run = self.tool(*args)
                self.assertEqual((run.status, run.err), (0, ''))
                got = from_file(*npy_read(self.path('o.npy'))[1:], layout)
                for b in range(2):
                    rows = [(table[b][j // size], j % size) for j in range(lens[b])]
                    keys, vals = (Array((1, 2, lens[b], x.size[3]),
                                        [y for h in range(2) for n, i in rows
                                         for y in x.row(n, h, i)])
                                  for x in map(self.rounded, (k, v)))
                    one = Array((1, 4, 5, 8),
                                self.rounded(q).values[b * 160:(b + 1) * 160])
                    want, _, _ = attention(one, keys, vals, causal=True,
                                           align='bottom-right')
                    for h in range(4):
                        for i in range(5):
                            for x, y in zip(got.row(b, h, i), want.row(0, h, i)):
                                self.assertAlmostEqual(x, y, delta=2e-5)

    def test_what_does_not_fit(self):
        self.command(*self.arrays())
        base = ['attn-run', 'softmax', '--q', 'q.npy', '--k', 'k.npy', '--v', 'v.npy',
                '--out', 'new.npy', '--device', 'host', '--variant', ORACLE]
        for option, file, more, words in REFUSED:
            with self.subTest(option=option, shape=file[1]):
                self.save('x.npy', *file)
                self.refused(self.tool(*base, '--' + option, 'x.npy', *more), 2, *words)
                self.assertFalse([n for n in os.listdir(self.folder.name)
                                  if n.startswith('new.npy')])
        for more, words in (
                (['--page-size', '4'], ('--page-size', '--block-table')),
                (['--block-table', 'x.npy'], ('--block-table', '--page-size')),
                (['--block-table', 'x.npy', '--page-size', '9', '--cu-k', 'x.npy'],
                 ('--cu-k', '--block-table')),
                (['--offset', 'x.npy', '--causal', 'bottom-right'], ('--offset',)),
                (['--page-size', '0'], ('--page-size',)),
                (['--splits', '0'], ('--splits',)), (['--splits', '4097'], ('--splits',))):
            self.refused(self.tool(*base, *more), 2, *words)


# q is [2, 4, 5, 8], k [2, 2, 9, 8]: option, file, more options, words of the message
REFUSED = [
    ('bias', ('<f4', (2, 9), [0] * 18), [], ('x.npy', '[2, 9]', '[2, 4, 5, 9]')),
    ('bias', ('<f4', (3, 4, 5, 9), [0] * 540), [], ('[3, 4, 5, 9]', '[2, 4, 5, 9]')),
    ('bias', ('<f4', (0,), []), [], ('x.npy', '[0]')),
    ('bias', ('|b1', (5, 9), [True] * 45), [], ('|b1', '<f4')),
    ('bias', ('<i4', (5, 9), [1] * 45), [], ('<i4', '<f4')),
    ('mask', ('|b1', (5, 8), [True] * 40), [], ('[5, 8]', '[2, 4, 5, 9]')),
    ('mask', ('<f4', (5, 9), [1] * 45), [], ('<f4', '|b1')),
    ('alibi', ('<f4', (2,), [1] * 2), [], ('x.npy', '[2]', '[Hq] = [4]')),
    ('alibi', ('<f4', (3, 4), [1] * 12), [], ('[3, 4]', '[B, Hq]')),
    ('alibi', ('<f4', (1, 2, 4), [1] * 8), [], ('[1, 2, 4]',)),
    ('alibi', ('<i4', (4,), [1] * 4), [], ('<i4',)),
    ('sinks', ('<f4', (2, 4), [1] * 8), [], ('[2, 4]', '[Hq] = [4]')),
    ('sinks', ('<f4', (1,), [1]), [], ('[1]', '[4]')),
    ('q-lens', ('<i4', (2,), [5, 6]), [], ('number 1 is 6', '0 .. 5', 'q.npy')),
    ('q-lens', ('<i4', (1,), [5]), [], ('want 2 numbers',)),
    ('offset', ('<i8', (2,), [0, 2 ** 31]), [], ('number 1 is 2147483648',)),
    ('offset', ('<i4', (3,), [0, 0, 0]), [], ('want 2 numbers',)),
    ('offset', ('<f4', (2,), [0, 0]), [], ('<f4', '<i4')),
    ('cu-q', ('<i4', (3,), [0, 2, 5]), [], ('q.npy', 'B is 2', '--cu-q')),
    ('cu-k', ('<i4', (3,), [0, 2, 5]), [], ('k.npy', 'B is 2', '--cu-k')),
    ('block-table', ('<i4', (2, 1), [0, 2]), ['--page-size', '9'],
     ('entry [1, 0] is 2', 'k.npy', '0 .. 1')),
    ('block-table', ('<i4', (2, 1), [0, -1]), ['--page-size', '9'], ('is -1',)),
    ('block-table', ('<i4', (3, 1), [0] * 3), ['--page-size', '9'], ('[3, 1]', 'B = 2')),
    ('block-table', ('<i4', (2,), [0] * 2), ['--page-size', '9'], ('[2]', 'B = 2')),
    ('block-table', ('<i4', (2, 1), [0] * 2), ['--page-size', '8'], ('k.npy', '9', '8')),
]
