// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_tiles.cu: gradients of causal linear attention in chunks on Hopper's tensor
// cores, of bf16, whose tiles need not be taken apart: all scans of a problem in one launch.
//
// Computes  dQ, dK and dV, as written in include/attn/linear.h
// Method    the scans of bwd_wgmma.cuh, each with all columns. Copies (cp.async) bring the tiles as
//           they lie in the tensors, some chunks ahead; q and k as bwd_phi.cu has made them. One
//           warpgroup brings them, one keeps the state, two have rows: those of dV and of dK,
//           which share a state, or each every second chunk of dQ
// Grid      1-D, heads * (segments of dV and dK + those of dQ) groups
// Block     _walk 512 threads, 1-D; _sums 256: 128 that bring, 128 that keep; _scan 256
// Shared    dynamic: tiles of chunks, states; barriers
// Barriers  full and empty ones in shared memory for each chunk and each state
// Layout    rows of all tensors 16 bytes at a time. work: slots of DIM * DIM floats, as lanes
//           have them
// Numerics  the state grows in the products' f32 sums and is read as the sum of two numbers of
//           bf16, since rows that read it may cancel what like rows have added.
//           Rows of dO, k and v with huge numbers are divided by a power of 2 meanwhile. What is
//           not finite may spread to rows of its chunk that do not see it. The bits of a head
//           depend on the segments, which follow from B and the heads, and on nothing else
// Instances _sums, _scan, _walk
// Requires  sm_90a; causal, no states that come or go; rows of 16-byte pieces, D
//           and Dv up to DIM; a query head for each of keys
// Tunables  STAGES_*, LAG_*; src/plan/cuda/linear_bwd_wgmma.c has the same numbers
// Oracle    src/host/linear_bwd_reference.c
//
// Built for each DIM (64, 128). NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_BF16
#endif
#ifndef DIM
#define DIM 64
#endif
#ifndef NAME
#define NAME attn_linear_bwd_wgmma_tiles_bf16_d64
#endif

constexpr int COLUMNS = DIM;
[[maybe_unused]] constexpr bool NORMALIZES = true;

#include "linear/wgmma.cuh"

static_assert(TYPE == TYPE_BF16, "tiles are products' operands as they come");

// States and stages in shared memory: of sums, of dQ, of dV and dK. How many chunks are asked for
// before the first is waited for: so that both warpgroups with rows have one. What they have made
// of a chunk they write, and leave its stage, when their next is there: so far behind is the last
// chunk that is asked for.
constexpr int STATES = DIM == 64 ? 2 : 1, STAGES_SUMS = DIM == 64 ? 4 : 6;
constexpr int STAGES_ONE = DIM == 64 ? 6 : 4, STAGES_BOTH = DIM == 64 ? 4 : 3;
constexpr int LAG_SUMS = STAGES_SUMS - 1, LAG_ONE = DIM == 64 ? 4 : 2, LAG_BOTH = 2;
constexpr int SUMMING = 256, WALKING = 512, SCANNING = 256;

static_assert(LAG_ONE + 2 <= STAGES_ONE && LAG_BOTH + 1 <= STAGES_BOTH, "chunks asked for ahead");

// Of threads that have rows, that keep the state, that bring.
constexpr int REGISTERS[3] = { DIM == 64 ? 168 : 144, DIM == 64 ? 104 : 168, DIM == 64 ? 72 : 56 };

// Those of a launch are multiples of 8 a thread; who waits for more than there are waits forever.
static_assert(2 * REGISTERS[0] + REGISTERS[1] + REGISTERS[2] <= 512,
              "registers of the warpgroups");

typedef float4 tile[PANELS][TILE];
typedef float4 state_tiles[PANELS][PANELS][TILE];    // columns, rows

// COUNT tiles: B, X, and those of A; what the normaliser adds to the pairs of the chunk's queries.
template <int COUNT, int STAGES> struct shared_tiles {
    tile at[STAGES][COUNT];
    float c[STAGES][CHUNK];
    device_barrier full[STAGES], empty[STAGES];
};

// A state is read as the sum of two numbers of bf16; where there is no room for both, of one after
// the other.
template <int COUNT, int STAGES> struct shared_scan {
    static constexpr bool IN_TURN = DIM > 64;
    static constexpr int AT_ONCE = IN_TURN ? 1 : 2;

    tile at[STAGES][COUNT];
    state_tiles s[STATES][AT_ONCE];
    float c[STAGES][CHUNK], factors[STAGES][CHUNK], last[STATES][DIM];
    device_barrier full[STAGES], empty[STAGES], there[1 + IN_TURN][2], read[STATES];
};

typedef shared_tiles<2, STAGES_SUMS> shared_sums;
typedef shared_scan<3, STAGES_ONE> shared_one;
typedef shared_scan<4, STAGES_BOTH> shared_both;

[[maybe_unused]] constexpr int WALK_BYTES = larger(sizeof(shared_one), sizeof(shared_both));

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "linear/bwd_wgmma_tile_rows.cuh"

// Barriers of stages; `readers` warpgroups read each chunk.
template <int STAGES, class MEM> DEVICE void begin_stages(MEM &mem, int readers)
{
    for (int i = 0; i < STAGES; i++) {
        device_barrier_init(&mem.full[i], 128);
        device_barrier_init(&mem.empty[i], 128 * readers);
    }
}

// What the rows of a segment add to the state, from its end that is walked last on: what the walk
// reads first was read last.
template <bool BACK> DEVICE void sum_segment(const attn_linear_kparams &p, int unit)
{
    SHARED_MEMORY(memory);
    shared_sums &mem = *(shared_sums *)memory;
    chunk_work w = find_segment<BACK>(p, unit);

    if (w.segment == pieces_of(p, BACK) - 1)
        return;    // what the last adds nobody reads
    if (!BACK)
        w.end = max(keys_of(w), w.first);
    if (threadIdx.x == 0)
        begin_stages<STAGES_SUMS>(mem, 1);
    device_barriers_ready();
    wait_for_rows(p);
    if (threadIdx.x < 128) {
        bringer<BACK, true, 2, STAGES_SUMS, LAG_SUMS, shared_sums>{ p, w, mem }.run(!BACK);
    } else {
        const int chunks = chunks_of(w);
        ring<STAGES_SUMS> from;
        kept_state my = {};

        #pragma unroll 1
        for (int n = 0; n < chunks; n++, from.move_on()) {
            device_barrier_wait(&mem.full[from.stage], from.parity);
            add_last<BACK>(p, mem.at[from.stage][!BACK], mem.c[from.stage], my);
            add_chunk(mem.at[from.stage][0], mem.at[from.stage][1], my);
            device_barrier_arrive(&mem.empty[from.stage]);
        }
        store_state(p, own_in_slot(tiles_slot(p, w, BACK, w.segment)), my);
    }
}

DEVICE void sum_segments(const attn_linear_kparams &p)
{
    const int group = blockIdx.x, behind = group - units_of(p, true);

    device_let_next();
    if (behind < 0)
        sum_segment<true>(p, group);
    else
        sum_segment<false>(p, behind);
}

// A slot becomes the sum of those up to it; the groups of a head's segments share the numbers.
template <bool BACK> DEVICE void scan_segment(const attn_linear_kparams &p, int unit)
{
    const chunk_work w = find_segment<BACK>(p, unit);
    const int STEP = slot_pieces(p), pieces = pieces_of(p, BACK);
    float4 *const all = tiles_slot(p, w, BACK, 0);

    device_wait_before();
    for (int e = w.segment * SCANNING + (int)threadIdx.x; e < STEP; e += pieces * SCANNING)
        add_up(all + e, STEP, pieces - 1);
}

DEVICE void scan_slots(const attn_linear_kparams &p)
{
    const int group = blockIdx.x, behind = group - units_of(p, true);

    device_let_next();
    if (behind < 0)
        scan_segment<true>(p, group);
    else
        scan_segment<false>(p, behind);
}

// By the warpgroup that keeps the state.
template <bool BACK, int STAGES, class MEM>
DEVICE void keep_state(const attn_linear_kparams &p, int unit, MEM &mem)
{
    const chunk_work w = find_segment<BACK>(p, unit);
    const int chunks = chunks_of(w);
    ring<STAGES> from;
    ring<STATES> to;
    ring<2> turn;
    const own_row mine;
    kept_state my = {};

    device_wait_before();
    add_states(p, w, BACK, my);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++, from.move_on(), to.move_on(), turn.move_on()) {
        device_barrier_wait(&mem.read[to.stage], to.parity ^ 1);
        share_last(p, my, mem.last[to.stage]);
        share_rows<MEM::IN_TURN ? FIRST_PART : BOTH_PARTS>(my, mem.s[to.stage], mine);
        arrive_written(&mem.there[0][turn.stage]);
        if (MEM::IN_TURN) {
            to.move_on();
            device_barrier_wait(&mem.read[to.stage], to.parity ^ 1);
            share_rows<REST>(my, mem.s[to.stage], mine);
            arrive_written(&mem.there[MEM::IN_TURN][turn.stage]);
        }
        device_barrier_wait(&mem.full[from.stage], from.parity);
        add_last<BACK>(p, mem.at[from.stage][!BACK], mem.c[from.stage], my);
        add_chunk(mem.at[from.stage][0], mem.at[from.stage][1], my);
        device_barrier_arrive(&mem.empty[from.stage]);
    }
}

// Y of every EVERY-th chunk from `first` on; A is tile OF. What a chunk has made is written beside
// the first products of the next. GROUP is the first of such warpgroups, and the barrier's number.
template <scan WHICH, int OF, int EVERY, int GROUP, int STAGES, class MEM>
DEVICE void walk_rows(const attn_linear_kparams &p, int unit, MEM &mem, int first)
{
    constexpr bool BACK = is_backwards(WHICH), TURNED = WHICH == GRAD_K;
    const chunk_work w = find_segment<BACK>(p, unit);
    const results all = results_of<WHICH>(p, w);
    const own_row mine;
    const int chunks = chunks_of(w);
    uint32_t n = first;

    #pragma unroll 1
    for (; (int)n < chunks; n += EVERY) {
        const uint32_t stage = n % STAGES, turn = n % 2, state = turn % STATES;
        const uint32_t parity = n / 2 % 2, meeting = GROUP + n % EVERY;
        const int j = chunk_at<BACK>(w, n);
        tile &a = mem.at[stage][OF];
        const tile &b = mem.at[stage][TURNED], &x = mem.at[stage][!TURNED];
        float pairs[CHUNK / 8][4], y[DIM / 8][4], down[2], none[2] = {};
        uint32_t weights[STEPS][4];
        own_slopes slopes;

        device_barrier_wait(&mem.full[stage], n / STAGES % 2);
        lower_rows(a, mine, meeting, down);
        begin_pairs(a, b, pairs);
        if constexpr (HOLDS_SLOPES)
            fetch_slopes<WHICH>(p, all, j, slopes);
        device_barrier_wait(&mem.there[0][turn], parity);
        begin_read<TURNED, MEM::AT_ONCE, false>(a, mem.s[state], y);
        if (n >= EVERY) {
            const uint32_t before = (n - EVERY) % STAGES;

            write_tile<WHICH>(p, all, chunk_at<BACK>(w, n - EVERY), mem.at[before][OF]);
            device_barrier_arrive(&mem.empty[before]);
        }
        device_products_wait<1>();
        device_products_hold(pairs);
        if (is_added<WHICH>(p))
            add_to_pairs<WHICH>(mem.c[stage], down, pairs);
        mask_pairs<BACK>(pairs, none);
        make_weights(pairs, weights);
        begin_seen(weights, x, y);
        device_products_wait<1>();
        if (MEM::IN_TURN) {
            device_barrier_arrive(&mem.read[state]);
            device_barrier_wait(&mem.there[MEM::IN_TURN][turn], parity);
            begin_read<TURNED, 1, true>(a, mem.s[state], y);
        } else if (!is_added<WHICH>(p)) {
            device_barrier_arrive(&mem.read[state]);
        }
        device_products_wait<0>();
        device_products_hold(y);
        if (is_added<WHICH>(p))
            read_last<WHICH>(mem.last[state], mem.c[stage], down, y);
        if (MEM::IN_TURN || is_added<WHICH>(p))
            device_barrier_arrive(&mem.read[state]);
        meet_whole(meeting);    // all have read A
        if constexpr (!HOLDS_SLOPES)
            bring_slopes<WHICH>(p, all, j, a);
        put_rows<WHICH>(p, mine, down, mem.factors[stage], slopes, y, a);
    }
    if (n >= EVERY)
        write_tile<WHICH>(p, all, chunk_at<BACK>(w, n - EVERY), mem.at[(n - EVERY) % STAGES][OF]);
    if (BACK && first == 0)
        write_zeros<WHICH>(p, find_segment<BACK>(p, device_group()));
}

// A scan, or with COUNT 4 both of dV and dK.
template <scan WHICH, int COUNT, int STAGES, int LAG>
DEVICE void walk_segment(const attn_linear_kparams &p, int unit)
{
    constexpr bool BACK = is_backwards(WHICH);
    typedef shared_scan<COUNT, STAGES> shared;
    SHARED_MEMORY(memory);
    shared &mem = *(shared *)memory;
    const int group = (int)__shfl_sync(0xffffffffu, threadIdx.x / 128, 0);

    device_let_next();
    if (threadIdx.x == 0) {
        const int readers = COUNT == 4 ? 2 : 1;

        begin_stages<STAGES>(mem, readers + 1);
        for (int i = 0; i < 2 * (1 + shared::IN_TURN); i++)
            device_barrier_init(&mem.there[i / 2][i % 2], 128);
        for (int i = 0; i < STATES; i++)
            device_barrier_init(&mem.read[i], 128 * readers);
    }
    device_barriers_ready();
    wait_for_rows(p);
    if (group == 0) {
        device_leave_registers<REGISTERS[2]>();

        const chunk_work w = find_segment<BACK>(p, unit);

        bringer<BACK, WHICH == GRAD_V, COUNT, STAGES, LAG, shared>{ p, w, mem }.run(BACK);
    } else if (group == 1) {
        if constexpr (DIM > 64)
            device_take_registers<REGISTERS[1]>();
        else
            device_leave_registers<REGISTERS[1]>();
        keep_state<BACK, STAGES>(p, unit, mem);
    } else {
        device_take_registers<REGISTERS[0]>();
        if (COUNT < 4)
            walk_rows<WHICH, 2, 2, 2, STAGES>(p, unit, mem, group - 2);
        else if (group == 2)
            walk_rows<GRAD_V, 2, 1, 2, STAGES>(p, unit, mem, 0);
        else
            walk_rows<GRAD_K, COUNT - 1, 1, 3, STAGES>(p, unit, mem, 0);
    }
}

// First dV and dK of all, then dQ.
DEVICE void walk_segments(const attn_linear_kparams &p)
{
    const int group = blockIdx.x, behind = group - units_of(p, true);

    if (behind < 0 && p.has & (LHAS_GRAD_K | LHAS_GRAD_V))
        walk_segment<GRAD_V, 4, STAGES_BOTH, LAG_BOTH>(p, group);
    else if (behind >= 0 && p.grad_q)
        walk_segment<GRAD_Q, 3, STAGES_ONE, LAG_ONE>(p, behind);
}

#define KERNEL_BODY(call) call(p)
#elif defined(__CUDA_ARCH__)
#error "sm_90a alone has these instructions"
#else    // the compiler's pass for the host
#define KERNEL_BODY(call)
#endif

#define JOIN(a, b) a##b
#define KERNEL(name, part, threads, blocks, call)                                   \
    extern "C" __global__ __launch_bounds__(threads, blocks) void JOIN(name, part)( \
        const __grid_constant__ attn_linear_kparams p)                              \
    {                                                                               \
        KERNEL_BODY(call);                                                          \
    }

KERNEL(NAME, _sums, SUMMING, DIM == 64 ? 2 : 1, sum_segments)
KERNEL(NAME, _scan, SCANNING, 1, scan_slots)
KERNEL(NAME, _walk, WALKING, 1, walk_segments)
