// SPDX-License-Identifier: MIT
// softmax/bwd_wgmma_parts.cuh: the products of bwd_wgmma.cu for more than 128 columns. The two
// warpgroups have the same 64 keys: one finds the weights and has the sums of dV, the other
// the gradients of the scores, and those of dK; of dQ each has some columns. Weights go over
// in f32, dS in the type. TYPE and DIM are the image's.
#pragma once
#include "softmax/bwd_wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What both need to know before the first step; false: there is none.
template <typename T> DEVICE bool begin_parts(back_shared<T> &mem)
{
    const int warp = threadIdx.x / 32 - 4;

    if (!mem.step[0].there)
        return false;
    device_barrier_wait(&mem.full_own, 0);
    if (T::LIFTS) {
        if (warp < T::WARPS)
            mem.largest[warp] = find_largest(mem.v, warp * 16, place_of_own<T>);
        device_meet<MATH>(ALL_MATH);
    }
    return true;
}

// The columns of dQ of step n that a warpgroup has, PIECE: one after the other; dS is there.
// AT_ONCE of them, as many as the registers have room for. Behind this all products of the
// warpgroup's are over; `earlier` is told when those are that were begun before.
template <typename T, int PIECE, int AT_ONCE>
DEVICE void find_queries(back_shared<T> &mem, int n, float unlift, device_barrier *earlier)
{
    constexpr int COLUMNS = PIECE ? DIM - T::WIDTH : T::WIDTH;

    device_barrier_wait(&mem.full_ds[0], n & 1);
    #pragma unroll
    for (int c = 0; c < COLUMNS; c += AT_ONCE) {
        float dq[AT_ONCE / 8][4];

        begin_queries<T, AT_ONCE>(dq, mem.ds[0], mem.k, PIECE * T::WIDTH + c);
        if (earlier && c == 0) {
            device_products_wait<1>();
            device_barrier_arrive(earlier);
        }
        device_products_wait<0>();
        device_products_hold(dq);
        if (c + AT_ONCE == COLUMNS)
            device_barrier_arrive(&mem.empty_ds[0]);
        if (c == 0)    // the slot is the other piece's in between
            device_barrier_wait(&mem.empty_dq[PIECE ^ 1], n & 1 ^ (PIECE ? 0 : 1));
        put_queries<COLUMNS>(dq, c, threadIdx.x / 32 % 4, unlift, mem.dq[0]);
    }
    device_copies_to_products();
    device_barrier_arrive(&mem.full_dq[PIECE]);
}

// Weights, and dV.
template <typename T, int CAN>
DEVICE void compute_values(const attn_kparams &p, back_shared<T> &mem)
{
    const back_group &group = mem.group;
    const int warp = threadIdx.x / 32 - 4;
    const int lane = threadIdx.x % 32, key = group.first + warp * 16 + lane / 4;
    const float unit = p.scale * 1.44269504088896340736f;
    const uint64_t k_at = device_tile(device_address(mem.k), T::BM * 128);
    back_pairs<T> s;
    back_sums<T> dv;
    float lift = 0x1p60f;
    int n = 0;

    #pragma unroll
    for (int i = 0; i < T::DT * 4; i++)
        dv[i / 4][i % 4] = 0.0f;
    device_barrier_wait(&mem.full_q[0], 0);
    begin_pairs<T>(s, k_at, mem.q[0]);
    device_products_wait<0>();
    #pragma unroll 1
    for (; mem.step[n % STEPS].there; n++) {
        const mma_step &at = mem.step[n % STEPS];
        const int slot = n % T::STAGES, next = (n + 1) % T::STAGES;
        back_operand<T> w;

        if (T::LIFTS && T::Q)
            lift = next_lift<T>(mem, n, lift);
        device_products_hold(s);
        find_weights<T>(s, unit, mem.lse[slot]);
        if (at.masked)
            mask_weights<T>(s, at, key, group.seq.keys);
        device_barrier_arrive(&mem.empty[slot]);
        device_barrier_wait(&mem.empty_weights, n & 1 ^ 1);
        #pragma unroll
        for (int t = 0; t < T::NT; t++)
            mem.weights[t][threadIdx.x - 128] =
                make_float4(s[t][0], s[t][1], s[t][2], s[t][3]);
        device_barrier_arrive(&mem.full_weights);
        device_barrier_wait(&mem.full_o[0], n & 1);
        if (T::OWN) {
            pack_pairs<T>(s, WEIGHT_LIFT, w);
            begin_sums<T>(dv, w, mem.o[0]);
        }
        device_barrier_wait(&mem.full_q[next], (n + 1) / T::STAGES & 1);
        begin_pairs<T>(s, k_at, mem.q[next]);    // if there is no such step, of what lies there
        if (T::OWN) {
            device_products_wait<1>();
            device_products_hold(dv);
        }
        device_barrier_arrive(&mem.empty_o);
        if (T::Q)
            find_queries<T, 0, 64>(mem, n, T::LIFTS ? 1.0f / lift : 1.0f, NULL);
        else
            device_products_wait<0>();
    }
    if (T::OWN)
        device_products_hold(dv);
    if (T::Q) {    // there is no such step
        device_barrier_wait(&mem.empty_dq[1], n & 1 ^ 1);
        device_barrier_arrive(&mem.full_dq[0]);
    }
    if (T::OWN && p.has & HAS_GRAD_V)
        store_keys<T, CAN>(p, dv, warp * 16, p.grad_v,
                           ADDRESS_KEYS(p, grad_v, group.seq, group.b, group.owner),
                           group.first, group.owned, p.dv, 1.0f / WEIGHT_LIFT);
}

// Gradients of the scores, and dK.
template <typename T, int CAN>
DEVICE void compute_keys(const attn_kparams &p, back_shared<T> &mem)
{
    const back_group &group = mem.group;
    const int warp = threadIdx.x / 32 - 8;
    const uint64_t v_at = device_tile(device_address(mem.v), T::BM * 128);
    back_sums<T> dk;
    float lift = T::LIFTS ? 0x1p60f : 1.0f;    // what dK is times what it should be
    int n = 0;

    #pragma unroll
    for (int i = 0; i < T::DT * 4; i++)
        dk[i / 4][i % 4] = 0.0f;
    device_barrier_wait(&mem.full_q[0], 0);
    #pragma unroll 1
    for (; mem.step[n % STEPS].there; n++) {
        const mma_step &at = mem.step[n % STEPS];
        const int slot = n % T::STAGES;
        back_pairs<T> s, dp;
        back_operand<T> x;

        if (T::LIFTS) {
            const float now = next_lift<T>(mem, n, lift);

            if (now != lift || n == 0) {
                if (T::OWN)
                    move_sums<T>(dk, lift, now);
                lift = now;
            }
            if (T::OWN)
                device_products_hold(dk);
        }
        device_barrier_wait(&mem.full_o[0], n & 1);
        begin_pairs<T>(dp, v_at, mem.o[0]);
        device_products_wait<0>();
        device_products_hold(dp);
        device_barrier_arrive(&mem.empty_o);
        device_barrier_wait(&mem.full_weights, n & 1);
        #pragma unroll
        for (int t = 0; t < T::NT; t++) {
            const float4 four = mem.weights[t][threadIdx.x - 256];

            s[t][0] = four.x;
            s[t][1] = four.y;
            s[t][2] = four.z;
            s[t][3] = four.w;
        }
        device_barrier_arrive(&mem.empty_weights);
        find_gradients<T>(s, dp, mem.delta[slot], at.masked);
        pack_pairs<T>(dp, lift, x);
        if (T::Q) {
            device_barrier_wait(&mem.empty_ds[0], n & 1 ^ 1);
            put_gradients<T>(x, warp * 16, mem.ds[0]);
            device_copies_to_products();
            device_barrier_arrive(&mem.full_ds[0]);
        }
        if (T::OWN)
            begin_sums<T>(dk, x, mem.q[slot]);
        if (T::Q) {
            find_queries<T, 1, 128>(mem, n, T::LIFTS ? 1.0f / lift : 1.0f, &mem.empty[slot]);
        } else {
            device_products_wait<0>();
            device_barrier_arrive(&mem.empty[slot]);
        }
        if (T::OWN)
            device_products_hold(dk);
        device_barrier_wait(&mem.full_q[(n + 1) % T::STAGES], (n + 1) / T::STAGES & 1);
    }
    if (T::OWN && p.has & HAS_GRAD_K)
        store_keys<T, CAN>(p, dk, warp * 16, p.grad_k,
                           ADDRESS_KEYS(p, grad_k, group.seq, group.b, group.owner),
                           group.first, group.owned, p.d, p.scale / lift);
}

template <typename T, int CAN> DEVICE void compute(const attn_kparams &p, back_shared<T> &mem)
{
    begin_parts<T>(mem);
    if (threadIdx.x < 256)
        compute_values<T, CAN>(p, mem);
    else
        compute_keys<T, CAN>(p, mem);
}

#endif
