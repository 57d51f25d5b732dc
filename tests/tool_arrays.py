# SPDX-License-Identifier: MIT
"""What the tests of attn-run share: random arrays in files, and results held against the
reference in Python's doubles."""
import math

from reference import attention, from_file, npy_read, round_to
from tool_case import Case

NORM = {'f32': 2e-6, 'f16': 1e-3, 'bf16': 8e-3}
ROUNDED = {'f32': 2 ** -22, 'f16': 2 ** -10, 'bf16': 2 ** -7}   # of a score


class Arrays(Case):
    """Runs attn-run on random arrays and holds the result against the reference."""

    def command(self, q, k, v, layout='bhld', kind='f32', descr='<f4', rank=4, lens=None,
                lens_descr='<i4', files=None, reference=None, **opts):
        """Writes the files; returns the arguments and the reference's. `files` are those
        of more options, (descr, shape, values) each; `reference` what they mean to it."""
        args = ['attn-run', 'softmax', '--device', opts.pop('device', 'host')]
        rounded = []
        for name, array in (('q', q), ('k', k), ('v', v)):
            shape, values = array.in_file_order(layout)
            if descr == '<f4':
                values = [round_to('f32', x) for x in values]
            if descr == '<f2':
                values = [round_to('f16', x) for x in values]
            self.save(name + '.npy', descr, shape[4 - rank:], values)
            args += ['--' + name, name + '.npy']
            rounded.append(from_file(shape, [round_to(kind, x) for x in values], layout))
        args += ['--type', kind, '--layout', layout, '--out', 'o.npy', '--lse', 'lse.npy']
        causal = opts.pop('causal', False)
        align = opts.pop('align', None)
        for name, value in opts.items():
            text = f'{value[0]},{value[1]}' if name == 'window' else str(value)
            args += ['--' + name, text]
        if causal:
            args += ['--causal', align or 'top-left']
        elif align:
            args += ['--align', align]
        if lens is not None:
            self.save('lens.npy', lens_descr, [len(lens)], lens)
            args += ['--kv-lens', 'lens.npy']
        for name, file in (files or {}).items():
            self.save(name + '.npy', *file)
            args += ['--' + name, name + '.npy']
        for name in ('variant', 'splits', 'page-size'):
            opts.pop(name, None)
        if 'dropout-offset' in opts:
            opts['dropout_offset'] = opts.pop('dropout-offset')
        if 'scale' in opts:
            opts['scale'] = round_to('f32', opts['scale'])
        return args, rounded, dict(opts, causal=causal, align=align or 'top-left',
                                   lens=lens, **(reference or {}))

    def check(self, kind, got, want, lse, largest, rounded=False):
        """Each (batch, head) within the tolerance of its type, and the LSE; wider where
        the variant rounds scores to the type."""
        bits = ROUNDED[kind] if rounded else 2 ** -22
        _, heads, length, dv = want.size
        got_lse = npy_read(self.path('lse.npy'))[2]
        for n, most in enumerate(largest):
            b, h = divmod(n, heads)
            x = [y for i in range(length) for y in got.row(b, h, i)]
            y = [z for i in range(length) for z in want.row(b, h, i)]
            norm = math.sqrt(math.fsum(z * z for z in y))
            error = math.sqrt(math.fsum((a - z) ** 2 for a, z in zip(x, y)))
            self.assertLessEqual(error, (NORM[kind] + bits * most) * norm, (b, h))
            for i in range(length):
                a, z = got_lse[n * length + i], lse[n * length + i]
                if math.isinf(z):
                    self.assertEqual(a, z)
                    continue
                slack = (1e-5 * abs(z) + 1e-6 if kind == 'f32' else 1e-3 + 1e-6 * abs(z))
                self.assertLessEqual(abs(a - z), slack + bits * most)

    def compare(self, q, k, v, **opts):
        kind, layout = opts.get('kind', 'f32'), opts.get('layout', 'bhld')
        rank, rounded_scores = opts.get('rank', 4), opts.pop('rounded', False)
        args, rounded, reference = self.command(q, k, v, **opts)
        run = self.tool(*args)
        self.assertEqual((run.status, run.out, run.err), (0, '', ''))
        want, lse, largest = attention(*rounded, **reference)
        descr, shape, values = npy_read(self.path('o.npy'))
        self.assertEqual(descr, '<f2' if kind == 'f16' else '<f4')
        self.assertEqual(shape, tuple(want.in_file_order(layout)[0][4 - rank:]))
        got = from_file(shape, values, layout)
        if kind == 'bf16':
            for x in values:
                self.assertEqual(x, round_to('bf16', x))
        self.check(kind, got, want, lse, largest, rounded_scores)
        descr, shape, _ = npy_read(self.path('lse.npy'))
        self.assertEqual(descr, '<f4')
        self.assertEqual(shape, want.size[:3][4 - rank:] if (rank, layout) != (2, 'blhd')
                         else want.size[1:2])

    def arrays(self, b=2, hq=4, hkv=2, lq=5, lk=9, d=8, dv=8):
        return (self.random_array((b, hq, lq, d), 2), self.random_array((b, hkv, lk, d)),
                self.random_array((b, hkv, lk, dv)))
