// SPDX-License-Identifier: MIT
// softmax/bwd_wgmma_keys.cuh: the products of bwd_wgmma.cu for up to 128 columns, where each
// warpgroup has 64 keys and the sums of dK and dV for them. TYPE and DIM are the image's.
#pragma once
#include "softmax/bwd_wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <typename T, int CAN> DEVICE void compute(const attn_kparams &p, back_shared<T> &mem)
{
    constexpr int SUMS = T::Q ? T::SUMS : 1, COLUMNS = DIM / 2;
    const back_group &group = mem.group;
    const int wg = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0) - 1;    // of the warp
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0) - 4;
    const int lane = threadIdx.x % 32, key = group.first + warp * 16 + lane / 4;
    const float unit = p.scale * 1.44269504088896340736f;
    const uint64_t k_at = device_tile(device_address(mem.k + wg * 64 * 8), T::BM * 128);
    const uint64_t v_at = device_tile(device_address(mem.v + wg * 64 * 8), T::BM * 128);
    back_pairs<T> s;
    back_sums<T> dk, dv;
    float lift = T::LIFTS ? 0x1p60f : 1.0f;    // what dK is times what it should be
    float unlift = 1.0f;                       // and dQ of a step, the other way round
    int n = 0;

    #pragma unroll
    for (int i = 0; i < T::DT * 4; i++)
        dk[i / 4][i % 4] = dv[i / 4][i % 4] = 0.0f;
    if (mem.step[0].there) {
        device_barrier_wait(&mem.full_own, 0);
        if (T::LIFTS) {
            mem.largest[warp] = find_largest(mem.v, warp * 16, place_of_own<T>);
            device_meet<MATH>(ALL_MATH);
        }
    }

    const auto wait_for_step = [&](int i) {    // or for word that there is none
        device_barrier_wait(&mem.full_q[i % T::STAGES], i / T::STAGES & 1);
    };
    const auto begin_scores = [&](int i) {    // if there is no such step, of what lies there
        begin_pairs<T>(s, k_at, mem.q[i % T::STAGES]);
    };
    const auto find_next_lift = [&](int i) {    // its Q has arrived
        if (!T::LIFTS || !mem.step[i % STEPS].there)
            return;

        const float now = next_lift<T>(mem, i, lift);

        if (now != lift || i == 0) {
            if (T::OWN)
                move_sums<T>(dk, lift, now);
            lift = now;
        }
        if (T::OWN)
            device_products_hold(dk);
    };
    // dQ of step i, whose product is over, goes to who adds it
    const auto hand_over = [&](float (&dq)[COLUMNS / 8][4], int i) {
        const int to = i % SUMS;

        device_products_hold(dq);
        device_barrier_wait(&mem.empty_dq[to], i / SUMS & 1 ^ 1);
        put_queries<DIM>(dq, wg * COLUMNS, warp % 4, unlift, mem.dq[to]);
        device_copies_to_products();
        device_barrier_arrive(&mem.full_dq[to]);
    };

    wait_for_step(0);
    find_next_lift(0);
    if (T::APART) {
        begin_scores(0);
        device_products_wait<0>();
    }
    #pragma unroll 1
    for (; mem.step[n % STEPS].there; n++) {
        const mma_step &at = mem.step[n % STEPS];
        const int slot = n % T::STAGES, pairs = n % 2, before = pairs ^ 1;
        back_pairs<T> dp;
        back_operand<T> w, x;
        float dq[COLUMNS / 8][4];

        if (!T::APART)
            begin_scores(n);
        device_barrier_wait(&mem.full_o[slot], n / T::STAGES & 1);
        begin_pairs<T>(dp, v_at, mem.o[slot]);
        if (T::APART && T::Q) {    // of the step before; if there was none, of what lies there
            if (n > 0)
                device_barrier_wait(&mem.full_ds[before], (n - 1) / 2 & 1);
            begin_queries<T, COLUMNS>(dq, mem.ds[before], mem.k, wg * COLUMNS);
        }
        if (!T::APART)
            device_products_wait<1>();
        device_products_hold(s);
        find_weights<T>(s, unit, mem.lse[slot]);
        if (at.masked)
            mask_weights<T>(s, at, key, group.seq.keys);
        if (T::OWN) {
            pack_pairs<T>(s, WEIGHT_LIFT, w);
            begin_sums<T>(dv, w, mem.o[slot]);
        }
        device_products_wait<T::OWN ? 1 : 0>();
        device_products_hold(dp);
        find_gradients<T>(s, dp, mem.delta[slot], at.masked);
        if (T::APART) {
            wait_for_step(n + 1);
            begin_scores(n + 1);
        }
        if (T::APART && T::Q && n > 0) {
            device_barrier_arrive(&mem.empty_ds[before]);
            hand_over(dq, n - 1);
        }
        unlift = T::LIFTS ? 1.0f / lift : 1.0f;
        pack_pairs<T>(dp, lift, x);
        if (T::Q) {
            if (T::APART)
                device_barrier_wait(&mem.empty_ds[pairs], n / 2 & 1 ^ 1);
            put_gradients<T>(x, warp * 16, mem.ds[pairs]);
            device_copies_to_products();
            if (T::APART)
                device_barrier_arrive(&mem.full_ds[pairs]);
        }
        if (T::OWN)
            begin_sums<T>(dk, x, mem.q[slot]);
        if (!T::APART && T::Q) {
            device_meet<MATH>(ALL_MATH);    // dS is there for both
            begin_queries<T, COLUMNS>(dq, mem.ds[pairs], mem.k, wg * COLUMNS);
        }
        device_products_wait<0>();
        if (T::OWN) {
            device_products_hold(dk);
            device_products_hold(dv);
        }
        device_barrier_arrive(&mem.empty[slot]);
        if (!T::APART && T::Q)
            hand_over(dq, n);
        if (!T::APART)
            wait_for_step(n + 1);
        find_next_lift(n + 1);
    }
    if (T::APART && T::Q && n > 0) {
        float dq[COLUMNS / 8][4];

        device_barrier_wait(&mem.full_ds[(n - 1) % 2], (n - 1) / 2 & 1);
        begin_queries<T, COLUMNS>(dq, mem.ds[(n - 1) % 2], mem.k, wg * COLUMNS);
        device_products_wait<0>();
        hand_over(dq, n - 1);
    }
    if (T::Q) {    // there is no such step
        device_barrier_wait(&mem.empty_dq[n % SUMS], n / SUMS & 1 ^ 1);
        device_barrier_arrive(&mem.full_dq[n % SUMS]);
    }
    if (!T::OWN)
        return;
    device_products_hold(dk);
    device_products_hold(dv);
    if (p.has & HAS_GRAD_K)
        store_keys<T, CAN>(p, dk, warp * 16, p.grad_k,
                           ADDRESS_KEYS(p, grad_k, group.seq, group.b, group.owner),
                           group.first, group.owned, p.d, p.scale / lift);
    if (p.has & HAS_GRAD_V)
        store_keys<T, CAN>(p, dv, warp * 16, p.grad_v,
                           ADDRESS_KEYS(p, grad_v, group.seq, group.b, group.owner),
                           group.first, group.owned, p.dv, 1.0f / WEIGHT_LIFT);
}

#endif
