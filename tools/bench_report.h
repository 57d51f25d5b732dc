/* SPDX-License-Identifier: MIT */
/* tools/bench_report.h: what attn-bench prints. */
#ifndef ATTN_TOOLS_BENCH_REPORT_H
#define ATTN_TOOLS_BENCH_REPORT_H

#include <stdbool.h>

#include <attn/attn.h>

#include "measure.h"

/* A device that is timed, and what it is held against. */
typedef struct bench_device {
    attn_ctx *ctx;
    attn_device_info info;
    gemm gemm;              /* processors */
    sweep sweep;
    lane_cuda lane;         /* "cuda" */
    ceiling ceiling;        /* GPUs */
    yardsticks against;
} bench_device;

typedef struct bench_report {
    const bench_device *device;
    int n_devices;
    timing_way timing;
    bool cold;
    const char *peer; /* a variant; NULL: none was asked for */
    measurement *item;
    size_t n, room;
} bench_report;

/* The name of a way of timing, and a table of them for cli_word(). */
extern const char *const bench_timings[];

/* Prints all of it. An exit status or CLI_GO. */
int bench_print_json(const bench_report *r);
void bench_print_csv(const bench_report *r);
void bench_print_table(const bench_report *r);

#endif
