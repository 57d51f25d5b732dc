/* SPDX-License-Identifier: MIT */
/* emulator/cudnn.h: what the files of the emulated cuDNN share. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cudnn_types.h"

enum { DIMS = 4, MOST_SLOTS = 32, MOST_OPERATIONS = 24 };

/* Short names of the descriptors. */
enum {
    TENSOR = CUDNN_BACKEND_TENSOR_DESCRIPTOR,
    MATMUL = CUDNN_BACKEND_MATMUL_DESCRIPTOR,
    MATMUL_OP = CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
    POINT = CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
    POINT_OP = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
    REDUCTION = CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
    REDUCTION_OP = CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
    GRAPH = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
    HEURISTICS = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
    CONFIG = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
    PLAN = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
    PACK = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
    ANY = -1
};

/* A descriptor of any type: what was set of it, by the place of the rule. */
typedef struct descriptor {
    int type;
    bool finalized;
    int number; /* an engine configuration: which of the heuristics' */
    int64_t count[8];
    union {
        int64_t numbers[MOST_SLOTS];
        struct descriptor *list[MOST_SLOTS];
        void *pointers[MOST_SLOTS];
    } value[8];
} descriptor;

/* cudnn.c. An attribute of a descriptor that has it: 0 or NULL if it was not set. */
int64_t number_of(const descriptor *d, int name);
descriptor *one_of(const descriptor *d, int name);
const int64_t *numbers_of(const descriptor *d, int name);
descriptor *const *list_of(const descriptor *d, int name);
int64_t count_of(const descriptor *d, int name);

/* Remembers why, for cudnnGetLastErrorString(). Returns the code. */
cudnnStatus_t no(cudnnStatus_t code, const char *reason);

/* A tensor of the graph: its numbers, and where it is while the plan runs. */
typedef struct slot {
    int64_t uid, size[DIMS], stride[DIMS];
    int type;
    bool is_virtual, by_value;
    int64_t alignment, offset; /* in bytes; of a virtual row, in floats */
} slot;

typedef struct operation {
    int kind, mode; /* CUDNN_BACKEND_OPERATION_..., of a pointwise one or a reduction */
    int64_t axis;
    int x, b, t, y; /* slots; -1: has none */
} operation;

/* What a finalized graph is compiled to; lives as long as the plan. */
typedef struct program {
    slot tensor[MOST_SLOTS];
    operation step[MOST_OPERATIONS];
    int n_tensors, n_steps;
    int64_t row_floats; /* of all virtual rows together */
} program;

/* cudnn_check.c. What the true library finds wrong when a descriptor is finalized whose
 * attributes are all set; compiles a graph. */
cudnnStatus_t check(descriptor *d);
program *program_of(const descriptor *graph);
bool is_attention(const program *p);

/* One execution: memory of tensors, numbers of those by value. */
typedef struct execution {
    const program *p;
    void *data[MOST_SLOTS];
    float value[MOST_SLOTS];
    char *workspace;
    int64_t workspace_bytes;
} execution;

/* cudnn_run.c. Computes it, row after row; takes an execution. */
void run_program(const void *with);
