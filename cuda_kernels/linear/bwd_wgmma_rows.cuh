// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_rows.cuh: the loops over chunks of linear_bwd_wgmma: of the warpgroup that keeps
// the state, and of those that have rows of A. STAGES, STATES, ASKS and shared_walk are
// bwd_wgmma.cu's.
#pragma once
#include "linear/bwd_wgmma_walk.cuh"

// Whether heads of queries share one of keys, and backwards each warpgroup has several of them.
template <scan WHICH> DEVICE bool is_grouped(const attn_linear_kparams &p)
{
    return DIM == 64 && is_backwards(WHICH) && p.group > 1;
}

// Found by each warpgroup for itself: what all know would be kept in the registers of all.
template <scan WHICH, bool GROUPED>
DEVICE chunk_work find_walk(const attn_linear_kparams &p, int group)
{
    device_forget();
    return find_scan<WHICH, GROUPED>(p, is_backwards(WHICH) ? p.heads_kv : p.heads_q, group,
                                     width_of(p, WHICH));
}

// By the warpgroup that keeps the state.
template <scan WHICH, bool GROUPED>
DEVICE void keep_state(const attn_linear_kparams &p, shared_walk &mem, int group)
{
    const chunk_work w = find_walk<WHICH, GROUPED>(p, group);
    const int chunks = chunks_of(w), heads = heads_of<GROUPED>(p);
    group_state my = {};

    device_wait_before();
    load_first<WHICH>(p, w, my);
    if (has_z<WHICH>(p, w) && linear_has(p, LINEAR_SLOTS))
        for (int slot = first_slot(p, w); slot <= last_slot(p, w); slot++)
            my.z += *z_in_slot<WHICH>(p, w, slot);
    #pragma unroll 1
    for (int c = 0, n = 0; c < chunks; c++) {
        const int slot = c % STATES;

        device_barrier_wait(&mem.read[slot], (c / STATES & 1) ^ 1);
        share_state(my, mem.s[slot]);
        if (has_z<WHICH>(p, w))
            mem.z[slot][thread_of_group()] = my.z;
        arrive_written(&mem.there[slot]);
        #pragma unroll 1
        for (const int end = n + heads; n < end; n++)
            add_rows<STAGES>(n, mem, my);
    }
}

// Y of every EVERY-th chunk from `first` on. TURNED: the tiles and the state are those of the
// scan of dV, and this one is that of dK.
template <scan WHICH, bool TURNED, int EVERY>
DEVICE void walk_rows(const attn_linear_kparams &p, shared_walk &mem, int group, int first)
{
    constexpr bool BACK = is_backwards(WHICH);
    const chunk_work w = find_walk<WHICH, false>(p, group);
    const int chunks = chunks_of(w);
    queries coming;

    fetch_reads<WHICH>(p, w, chunk_at<BACK>(w, first), coming);
    #pragma unroll 1
    for (int n = first; n < chunks; n += EVERY) {
        const int j = chunk_at<BACK>(w, n), next = j + (BACK ? -EVERY : EVERY) * CHUNK;
        const int stage = n % STAGES, slot = n % STATES;
        const float4 *const b = TURNED ? mem.x[stage][0] : mem.b[stage][0][0];
        const float4 *const x = TURNED ? mem.b[stage][0][0] : mem.x[stage][0];
        float pairs[CHUNK / 8][4], read[NT][4], seen[NT][4], down[2], scale[2], none[2] = {};
        operands<STEPS> weights;

        {
            operands<DIM / 16> a;
            float raw[DIM / 8][4];

            take_queries<MAPS && WHICH == GRAD_V>(p, coming, raw, down);
            make_operands(raw, a);
            if (ASKS == AT_ONCE)
                fetch_reads<WHICH>(p, w, next, coming);
            device_barrier_wait(&mem.full[stage], n / STAGES & 1);
            begin_products<true, PARTS>(a, b, PANELS, pairs);
            device_barrier_wait(&mem.there[slot], n / STATES & 1);
            begin_products<TURNED, STATE_PARTS>(a, mem.s[slot][0][0], PANELS, read);
            device_products_wait<(ASKS == BETWEEN ? 0 : 1)>();
            device_products_hold(pairs);
            if (ASKS == BETWEEN)
                fetch_reads<WHICH>(p, w, next, coming);
            add_numbers<WHICH>(mem.of, stage, down, pairs);
            mask_pairs<BACK>(pairs, none);
            make_operands(pairs, weights);
        }
        begin_products<false, PARTS>(weights, x, 1, seen);
        if (ASKS == LAST) {
            device_products_wait<1>();
            device_products_hold(read);
            fetch_reads<WHICH>(p, w, next, coming);
        }
        device_products_wait<0>();
        device_products_hold(read);
        device_products_hold(seen);
        scale_of<WHICH>(p, mem.of, stage, scale);
        read_z<WHICH>(mem.z[slot], mem.of, stage, down, read);
        device_barrier_arrive(&mem.empty[stage]);
        device_barrier_arrive(&mem.read[slot]);
        write_grads<WHICH>(p, w, j, down, scale, read, seen);
    }
    if (BACK && first == 0)
        write_zeros<WHICH>(p, w);
}

// The same where heads of queries share one of keys: all of a chunk's, one after another. Of every
// chunk: who skips some of them waits for stages that have been filled twice since.
template <scan WHICH, bool TURNED>
DEVICE void walk_group(const attn_linear_kparams &p, shared_walk &mem)
{
    const chunk_work w = find_walk<WHICH, true>(p, (int)blockIdx.x);
    const int chunks = chunks_of(w), heads = p.group;

    #pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        const int j = chunk_at<true>(w, c), slot = c % STATES;
        float sum[NT][4], down[2];

        #pragma unroll 1
        for (int g = 0; g < heads; g++) {
            const int n = c * heads + g, stage = n % STAGES;
            const float4 *const b = TURNED ? mem.x[stage][0] : mem.b[stage][0][0];
            const float4 *const x = TURNED ? mem.b[stage][0][0] : mem.x[stage][0];
            float pairs[CHUNK / 8][4], seen[NT][4], none[2] = {};
            operands<STEPS> weights;

            {
                operands<DIM / 16> a;
                float raw[DIM / 8][4];
                queries rows;

                fetch_reads<WHICH>(p, w, j, rows);
                take_queries<MAPS && WHICH == GRAD_V>(p, rows, raw, down);
                make_operands(raw, a);
                device_barrier_wait(&mem.full[stage], n / STAGES & 1);
                begin_products<true, PARTS>(a, b, PANELS, pairs);
                device_products_wait<0>();
                device_products_hold(pairs);
                if (g == 0) {
                    device_barrier_wait(&mem.there[slot], c / STATES & 1);
                    begin_products<TURNED, STATE_PARTS>(a, mem.s[slot][0][0], PANELS, sum);
                    device_products_wait<0>();
                    device_products_hold(sum);
                    read_z<WHICH>(mem.z[slot], mem.of, stage, down, sum);
                    device_barrier_arrive(&mem.read[slot]);
                }
            }
            add_numbers<WHICH>(mem.of, stage, down, pairs);
            mask_pairs<true>(pairs, none);
            make_operands(pairs, weights);
            begin_products<false, PARTS>(weights, x, 1, seen);
            device_products_wait<0>();
            device_products_hold(seen);
            device_barrier_arrive(&mem.empty[stage]);
            #pragma unroll
            for (int i = 0; i < NT * 4; i++)
                sum[i / 4][i % 4] += seen[i / 4][i % 4];
        }

        const float zeros[NT][4] = {};
        float scale[2];

        scale_of<WHICH>(p, mem.of, 0, scale);
        write_grads<WHICH>(p, w, j, down, scale, sum, zeros);
    }
    write_zeros<WHICH>(p, w);
}

// Barriers; `readers` warpgroups have rows of each chunk.
DEVICE void begin_walk(const attn_linear_kparams &p, shared_walk &mem, int readers)
{
    device_let_next();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.empty[i], 128 * (readers + 1));
        }
        for (int i = 0; i < STATES; i++) {
            device_barrier_init(&mem.there[i], 128);
            device_barrier_init(&mem.read[i], 128 * readers);
        }
    }
    device_barriers_ready();
    wait_for_phi(p);
}

