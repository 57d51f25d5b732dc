# SPDX-License-Identifier: MIT
"""A kernel that computes wrong results must not pass attn-validate, though the library
finds it first, in its self-test, and takes another. The CUDA emulator breaks the kernel."""
from tool_case import Case, tools_json

TAKEN = 'softmax_fwd:f32,b2,hq2,hkv1,lq9,lk70,d16,lse'
ROUNDED = 'softmax_fwd:f16,b2,hq2,hkv1,lq9,lk70,d16,lse'
REFUSED = 'softmax_fwd:f32,b1,hq2,hkv1,lq9,lk70,d300,lse'
FAILED = 'failed its self-test here: '


class Broken(Case):
    def setUp(self):
        super().setUp()
        names = [d['name'] for d in tools_json('attn-info', '--json')['devices']
                 if d['selector'] == 'cuda:0']
        if names != ['CUDA emulator on the processor']:
            self.skipTest('only the emulator breaks its kernels')

    def validate(self, kernel, *args):
        """The report, and the outcome of each problem, for softmax_fwd_tile."""
        run = self.tool('attn-validate', '--device', 'cuda:0', '--variant', 'softmax_fwd_tile',
                        '--rounds', '1', '--repeat', '1', '--json', *args,
                        env={'EMULATED_BROKEN': kernel})
        return run, {r['case']: (r['outcome'], r.get('what', '')) for r in run.json()['results']}

    def test_it_fails_what_it_would_take(self):
        run, results = self.validate('attn_softmax_fwd_tile', '--stress', '0', TAKEN, ROUNDED,
                                     REFUSED)
        self.assertEqual(run.status, 1, run.err)
        for problem in (TAKEN, ROUNDED):
            self.assertEqual(results[problem][0], 'failed')
            self.assertIn(FAILED, results[problem][1])
        self.assertEqual(results[REFUSED][0], 'says no')
        self.assertNotIn(FAILED, results[REFUSED][1])

    def test_the_checks_of_the_api_fail_too(self):
        run, results = self.validate('attn_softmax_fwd_tile', '--stress', '1', TAKEN)
        self.assertEqual(run.status, 1, run.err)
        name = 'softmax_fwd_tile: many runs, rows alone'
        self.assertEqual(results[name][0], 'failed')
        self.assertIn(FAILED, results[name][1])

    def test_another_kernel_is_none_of_its_business(self):
        run, results = self.validate('attn_softmax_fwd_naive', '--stress', '0', TAKEN, REFUSED)
        self.assertEqual(run.status, 0, run.out)
        self.assertEqual(results[TAKEN][0], 'passed')
        self.assertEqual(results[REFUSED][0], 'says no')
