// SPDX-License-Identifier: MIT
// softmax/split_tree.cuh: the order in which partial states of a row become one. Keys are cut
// into leaves, and neighbours are brought together four by four: leaves, then what became of
// them, and so on. Of four the first takes in the second, the result the third, that the
// fourth. One that is not there, or has no visible key (l = 0), changes nothing. So whoever
// has four states that lie side by side in this tree may bring them together, in registers, in
// shared memory or in a later kernel: the bits are the same.
#pragma once
#include "common/state.cuh"
#include "softmax/sums.cuh"

constexpr int TREE_WIDTH = 4;

// What the sums of two states that become one are multiplied by.
struct tree_factors {
    float before, next;
};

DEVICE float tree_weight(const attn_row &x, float reference)
{
    return x.l == 0.0f ? 0.0f : state_weight(x.m, reference);
}

// `before` takes in `next`. No compiler may choose which product is rounded.
DEVICE tree_factors tree_join(attn_row &before, const attn_row &next)
{
    const float m = state_max(next.m, before.m), reference = state_reference(m);
    const tree_factors f = { tree_weight(before, reference), tree_weight(next, reference) };

    before.m = m;
    before.l = fmaf(next.l, f.next, device_product(before.l, f.before));
    return f;
}

// The same for a sum of each, as rescaled() has it.
DEVICE float tree_sum(float before, float next, const tree_factors &f)
{
    const bool some = f.next > 0.0f || f.next != f.next;

    return fmaf(some ? next : 0.0f, f.next, rescaled(before, f.before));
}
