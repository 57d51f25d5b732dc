// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_shared.cuh: what linear_bwd_wgmma has in shared memory: tiles and barriers of
// the parts of bf16, and where f32 is two of f16 (FAST) tiles of those in the same place, and
// beside them their scales and barriers, since a group may go on with the others.
#pragma once
#include "linear/bwd_halves.cuh"

// Of normalised problems, of chunks: what is added to the pairs of a
// query, what divides it, and what the normaliser's row of the state grows by, by warps.
template <bool THERE, int STAGES> struct shared_numbers {};
template <int STAGES> struct shared_numbers<true, STAGES> {
    float c[STAGES][CHUNK], factors[STAGES][CHUNK], sums[STAGES][4][DIM];
};

// The largest numbers of a tensor's rows by the warps that bring them, of chunks in turn, and where
// they meet for the first.
struct shared_tops {
    alignas(16) float tops[2][4], first[2][4];
    device_barrier told, met;
};

// Of B and X; the exponents of the chunks of the stages; whether there is something odd.
template <int STAGES> struct shared_scales {
    shared_tops tops[2];
    int b[STAGES], x[STAGES], odd;
    device_barrier full[STAGES], empty[STAGES], done;
};

// Of a walk: the state's largest numbers by warps, in turn, and its exponents.
template <int STAGES, int STATES> struct shared_halves : shared_scales<STAGES> {
    alignas(16) float state_tops[2][4];
    int s[STATES];
    device_barrier there[STATES], read[STATES], kept;
};

typedef float4 half_states[2][PANELS][TILE];

template <int STAGES, int STATES> struct half_tiles {
    half_keys b[STAGES];
    half_values x[STAGES];
    half_states s[STATES];
};

template <int STAGES> struct half_wholes {
    half_keys b[STAGES], x[STAGES];
};

struct nothing {};
template <bool THERE, class T> struct only_if { typedef nothing type; };
template <class T> struct only_if<true, T> { typedef T type; };

struct shared_sums {
    keys b[SUM_STAGES];
    values x[SUM_STAGES];
    shared_numbers<NORMALIZES, SUM_STAGES> of;
    device_barrier full[SUM_STAGES], empty[SUM_STAGES];
};

struct shared_whole {
    union {
        struct {
            keys b[WHOLE_STAGES], x[WHOLE_STAGES];
        };
        only_if<FAST, half_wholes<HALF_WHOLE_STAGES>>::type halves;
    };
    only_if<FAST, shared_scales<HALF_WHOLE_STAGES>>::type fast;
    device_barrier full[WHOLE_STAGES], empty[WHOLE_STAGES];
};

struct shared_walk {
    union {
        struct {
            keys b[STAGES];
            values x[STAGES];
            states s[STATES];
        };
        only_if<FAST, half_tiles<HALF_STAGES, HALF_STATES>>::type halves;
    };
    only_if<FAST, shared_halves<HALF_STAGES, HALF_STATES>>::type fast;
    shared_numbers<NORMALIZES, STAGES> of;
    float z[STATES][NORMALIZES ? DIM : 2];
    device_barrier full[STAGES], empty[STAGES], there[STATES], read[STATES];
};
