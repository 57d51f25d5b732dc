# SPDX-License-Identifier: MIT
"""What every tool answers to bad options, and attn-run to bad input: status, one line."""
import math
import os
import random
import struct
import subprocess

from reference import npy_bytes
from tool_case import Case


ALL = ('attn-info', 'attn-run', 'attn-validate', 'attn-bench')


class Common(Case):
    def test_help_and_version(self):
        for tool in ALL:
            run = self.tool(tool, '--help')
            self.assertEqual((run.status, run.err), (0, ''))
            for word in ('usage:', '--device', '--json', '--help', '--version'):
                self.assertIn(word, run.out)
            self.assertLess(max(map(len, run.out.splitlines())), 93)
            run = self.tool(tool, '--version')
            self.assertEqual((run.status, run.err), (0, ''))
            self.assertRegex(run.out, rf'\A{tool} \d+\.\d+\.\d+\n\Z')

    def test_bad_options(self):
        for tool in ALL:
            for args, word in ((['--nonsense'], '--nonsense'), (['-h'], '-h'),
                               (['--dev', 'host'], '--dev'), (['--json=1'], '--json'),
                               (['--device'], '--device'), (['extra', 'more'], 'extra'),
                               (['--device', 'host', '--device', 'host'], 'twice'),
                               (['--device', '--json'], '--device'),
                               (['--json', '--', '--json'], '--json')):
                with self.subTest(tool=tool, args=args):
                    self.refused(self.tool(tool, *args), 2, word)

    def test_message_stays_on_one_line(self):
        run = self.tool('attn-info', '--device', 'a\nb\x1b[2J')
        self.refused(run, 2)
        self.assertNotIn('\x1b', run.err)

    def test_full_disk(self):
        if not os.path.exists('/dev/full'):
            self.skipTest('no /dev/full')
        for args in (['attn-info'], ['attn-info', '--json'], ['attn-run', '--help']):
            with open('/dev/full', 'w', encoding='utf-8') as full:
                run = self.tool(*args, capture_output=False, stdout=full,
                                stderr=subprocess.PIPE)
            self.assertEqual(run.status, 2)
            self.assertIn('stdout', run.err)


BAD = [
    (['--allow', 'fp8'], '--allow'), (['--allow'], '--allow'),
    (['--causal', 'diagonal'], '--causal'), (['--causal'], '--causal'),
    (['--align', 'left'], '--align'),
    (['--causal', 'top-left', '--align', 'bottom-right'], '--align'),
    (['--offset', '1', '--causal', 'bottom-right'], '--offset'),
    (['--offset', '0', '--align', 'bottom-right'], '--offset'),
    (['--offset', 'one'], '--offset'), (['--offset', '1.5'], '--offset'),
    (['--offset', '99999999999999999999'], '--offset'),
    (['--offset', '2147483648'], '--offset'),
    (['--window', '1'], '--window'), (['--window', '1,2,3'], '--window'),
    (['--window', '-2,0'], '--window'), (['--window', ',1'], '--window'),
    (['--window', '1, 2'], '--window'), (['--window', '0' * 40 + ',1'], '--window'),
    (['--scale', 'nan'], '--scale'), (['--scale', 'inf'], '--scale'),
    (['--scale', '1e39'], '--scale'), (['--scale', '1e999'], '--scale'),
    (['--scale', ''], '--scale'), (['--scale', '1x'], '--scale'),
    (['--softcap', '-1'], 'softcap'), (['--softcap', 'nan'], '--softcap'),
    (['--dropout', '1.5'], 'dropout = 1.5'), (['--dropout', '-0.1'], 'dropout'),
    (['--dropout', 'nan'], '--dropout'), (['--seed', '1'], '--dropout'),
    (['--dropout-offset', '1'], '--dropout'), (['--dropout', '0.5', '--seed', '-1'], '--seed'),
    (['--dropout', '0.5', '--seed', '1.5'], '--seed'),
    (['--type', 'f64'], '--type'), (['--layout', 'lbhd'], '--layout'),
    (['--repeat', '0'], '--repeat'), (['--repeat', '-1'], '--repeat'),
    (['--repeat', '2x'], '--repeat'),
    (['--variant', 'softmax_fwd_magic'], 'softmax_fwd_magic'),
    (['--device', 'abacus'], 'abacus'), (['--device', ''], '--device'),
    (['--kv-lens', 'none.npy'], 'none.npy'), (['--bias', 'none.npy'], 'none.npy'),
    (['--offset', './none'], './none'), (['--offset', 'none.npy'], 'none.npy'),
    (['--splits', '0'], '--splits'), (['--splits', '4097'], '--splits'),
    (['--causal=top-left', '--causal=top-left'], 'twice'),
    (['--out', 'p.npy'], '--out'), (['--grad', 'x'], '--grad'), (['softmax'], 'softmax'),
    (['--nonsense', '1'], '--nonsense'),
]


class Refusals(Case):
    def setUp(self):
        super().setUp()
        for name, size in (('q', (2, 4, 5, 8)), ('k', (2, 2, 9, 8)), ('v', (2, 2, 9, 8))):
            array = self.random_array(size)
            self.save(name + '.npy', '<f4', size, array.values)
        self.args = ['attn-run', 'softmax', '--q', 'q.npy', '--k', 'k.npy', '--v', 'v.npy',
                     '--out', 'o.npy']

    def try_it(self, *more, args=None):
        return self.tool(*(args or self.args), *more, env={'ATTN_DEVICE': 'host'})

    def refused(self, run, status, *words):
        super().refused(run, status, *words)
        self.assertFalse([n for n in os.listdir(self.folder.name) if n.startswith('o.npy')])

    def test_bad_values(self):
        for more, word in BAD:
            with self.subTest(more=more):
                self.refused(self.try_it(*more), 2, word)
        self.refused(self.try_it('--device', 'opencl:999'), 3, 'opencl:999')

    def test_operations(self):
        self.refused(self.tool('attn-run'), 2, 'softmax')
        self.refused(self.tool('attn-run', 'hardmax'), 2, 'hardmax')

    def test_missing(self):
        for option in ('--q', '--k', '--v', '--out'):
            args = list(self.args)
            at = args.index(option)
            del args[at:at + 2]
            self.refused(self.try_it(args=args), 2, option)
        for option in ('--q', '--k', '--v', '--out'):
            cut = self.args[:self.args.index(option) + 1]
            self.refused(self.try_it(args=cut), 2, option)

    def test_files_that_are_not_there(self):
        for option in ('--q', '--k', '--v'):
            args = list(self.args)
            args[args.index(option) + 1] = 'none.npy'
            self.refused(self.try_it(args=args), 2, 'none.npy')

    def test_outputs_that_cannot_be(self):
        for out in ('nowhere/o.npy', '.', ''):
            args = self.args[:-1] + [out]
            self.refused(self.try_it(args=args), 2, '--out')
        self.refused(self.try_it('--lse', 'o.npy'), 2, '--lse')
        self.refused(self.try_it('--lse', 'nowhere/lse.npy'), 2, 'nowhere')

    def test_a_report_that_cannot_be(self):
        """It is told before anything runs: no count of what passed."""
        run = self.tool('attn-validate', '--device', 'host', '--stress', 0, '--junit',
                        'nowhere/x.xml', 'softmax_fwd:f32,b1,hq1,hkv1,lq2,lk2,d8')
        super().refused(run, 2, '--junit nowhere/x.xml')
        self.assertEqual(run.out, '')

    def test_the_page_of_linear(self):
        super().refused(self.tool('attn-run', 'linear', '--softcap', 3), 2,
                        'attn-run linear --help')

    def test_a_failure_keeps_the_old_file(self):
        with open(self.path('old.npy'), 'wb') as file:
            file.write(b'precious')
        args = self.args[:-1] + ['old.npy']
        self.assertEqual(self.try_it('--dropout', '0.5', '--variant', 'softmax_fwd_split',
                                     args=args).status, 3)
        with open(self.path('old.npy'), 'rb') as file:
            self.assertEqual(file.read(), b'precious')

    def test_both_outputs_or_none(self):
        if not os.path.exists('/dev/full'):
            self.skipTest('no /dev/full')
        with open(self.path('lse.npy'), 'wb') as file:
            file.write(b'precious')
        args = self.args[:-1] + ['/dev/full', '--lse', 'lse.npy']
        self.refused(self.try_it(args=args), 2, '/dev/full')
        with open(self.path('lse.npy'), 'rb') as file:
            self.assertEqual(file.read(), b'precious')
        args = self.args + ['--lse', '/dev/full']
        self.refused(self.try_it(args=args), 2, '/dev/full')

    def test_shapes_that_do_not_agree(self):
        good = {'q': (2, 4, 5, 8), 'k': (2, 2, 9, 8), 'v': (2, 2, 9, 8)}
        for name, size, words in (
                ('q', (3, 4, 5, 8), ('k.npy', 'B is 2', '3')),
                ('q', (2, 3, 5, 8), ('q.npy', '3 heads', 'k.npy')),
                ('q', (2, 0, 5, 8), ('q.npy', '0 heads')),
                ('q', (2, 4, 5, 7), ('k.npy', 'D is 8', '7')),
                ('k', (1, 2, 9, 8), ('k.npy', 'v.npy', 'B is 2', '1')),
                ('k', (2, 2, 8, 8), ('v.npy', 'L is 9', '8')),
                ('k', (2, 0, 9, 8), ('v.npy', 'H is 2')),
                ('v', (2, 1, 9, 8), ('v.npy', 'H is 1')),
                ('v', (2, 2, 10, 8), ('v.npy', 'L is 10', '9')),
                ('v', (1, 2, 9, 8), ('v.npy', 'B is 1')),
                ('v', (2, 2, 9, 0), ('v.npy', 'D, is 0')),
                ('q', (2, 4, 5, 0), ('q.npy', 'D, is 0')),
                ('q', (8,), ('q.npy', '1 dimension')),
                ('q', (), ('q.npy', '0 dimensions'))):
            with self.subTest(name=name, size=size):
                for n, s in {**good, name: size}.items():
                    self.save(n + '.npy', '<f4', s, [0.5] * math.prod(s))
                self.refused(self.try_it(), 2, *words)

    def test_types_that_do_not_fit(self):
        for descr, value in (('<i4', 1), ('<i8', 1), ('|b1', True)):
            self.save('k.npy', descr, (2, 2, 9, 8), [value] * 288)
            self.refused(self.try_it(), 2, 'k.npy', descr)
        self.save('k.npy', '<f8', (2, 2, 9, 8), [0.5] * 288)
        self.assertEqual(self.try_it('--lse', 'lse.npy', args=[
            'out.npy' if a == 'o.npy' else a for a in self.args]).status, 0)
        self.save('q.npy', '<f8', (2, 4, 5, 8), [0.5] * 320)
        self.refused(self.try_it(), 2, 'q.npy', '--type')

    def test_bad_lengths(self):
        for descr, shape, values, words in (
                ('<i4', (2,), [9, 10], ('number 1 is 10', '9', 'k.npy')),
                ('<i4', (2,), [-1, 9], ('number 0 is -1',)),
                ('<i8', (2,), [9, 2 ** 32 + 1], ('number 1 is 4294967297',)),
                ('<i4', (1,), [9], ('want 2 numbers',)),
                ('<i4', (3,), [9, 9, 9], ('want 2 numbers',)),
                ('<i4', (2, 1), [9, 9], ('want 2 numbers', 'one dimension')),
                ('<i4', (), [9], ('want 2 numbers',)),
                ('<f4', (2,), [9, 9], ('<f4', '<i4'))):
            with self.subTest(descr=descr, values=values):
                self.save('lens.npy', descr, shape, values)
                self.refused(self.try_it('--kv-lens', 'lens.npy'), 2, 'lens.npy', *words)

    def test_corrupt_files(self):
        good = npy_bytes('<f4', (2, 4, 5, 8), [0.5] * 320)
        head = good.index(b'\n') + 1

        def header(text):
            text += ' ' * (-(10 + len(text) + 1) % 64) + '\n'
            return good[:8] + struct.pack('<H', len(text)) + text.encode() + good[head:]

        fine = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4, 5, 8), }"
        cases = {
            'empty': b'', 'no magic': b'PK\3\4' + good, 'short': good[:9],
            'in the header': good[:40], 'in the data': good[:-1], 'too long': good + b'\0',
            'version 9': good[:6] + b'\x09' + good[7:],
            'Fortran': header(fine.replace('False', 'True')),
            'big endian': header(fine.replace('<f4', '>f4')),
            'complex': header(fine.replace('<f4', '<c8')),
            'object': header(fine.replace('<f4', '|O')),
            'huge': header(fine.replace('(2,', '(9999999999999999,')),
            'overflow': header(fine.replace('(2, 4', '(4611686018427387904, 4')),
            'negative': header(fine.replace('(2,', '(-2,')),
            'five dimensions': header(fine.replace('(2,', '(1, 2,')),
            'no dictionary': header('import os'), 'no shape': header("{'descr': '<f4'}"),
            'all of it random': bytes(random.Random(1).randrange(256) for _ in range(500)),
        }
        for option in ('q', 'k', 'v'):
            for name, data in cases.items():
                with self.subTest(option=option, case=name):
                    with open(self.path('bad.npy'), 'wb') as file:
                        file.write(data)
                    args = ['bad.npy' if a == option + '.npy' else a for a in self.args]
                    self.refused(self.try_it(args=args), 2, 'bad.npy')

    def test_a_folder_as_a_file(self):
        os.mkdir(self.path('folder.npy'))
        args = ['folder.npy' if a == 'k.npy' else a for a in self.args]
        self.refused(self.try_it(args=args), 2, 'folder.npy')
