/* SPDX-License-Identifier: MIT */
/* tools/run_repeat.c: the same run many times on the device: times and bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* A tensor of the host and its twin on the device. */
typedef struct twin {
    const attn_tensor *host;
    attn_tensor *device;
    const npy_array *output; /* NULL: an input                         */
    const char *option;
    char *bits; /* of an output: a later run's            */
} twin;

typedef struct session {
    attn_ctx *ctx;
    const run_job *job;
    attn_plan *plan;
    attn_args args;
    twin twins[RUN_TENSORS];
} session;

static attn_status plan_text(const attn_plan *plan, char **text)
{
    size_t n = 0;
    attn_status st = attn_plan_text(plan, NULL, 0, &n);

    if (st == ATTN_OK && (*text = malloc(n + 1)))
        st = attn_plan_text(plan, *text, n + 1, &n);
    return st;
}

static int no_memory(void)
{
    return cli_fail(CLI_NOTHING, "no memory for the repeated runs");
}

static int prepare(session *s, run_times *times)
{
    attn_status st;

    cli_progress("planning");
    st = problem_plan(s->ctx, &s->job->problem, &s->job->options, &s->plan);
    if (st == ATTN_OK)
        st = plan_text(s->plan, &times->plan);
    if (st == ATTN_OK && !times->plan)
        return no_memory();
    if (st == ATTN_OK && (s->args.workspace_bytes = attn_plan_workspace_bytes(s->plan)))
        st = attn_memory_alloc(s->ctx, s->args.workspace_bytes, &s->args.workspace);
    cli_progress("copying to the device");
    for (int i = 0; i < s->job->n && st == ATTN_OK; i++) {
        twin *t = &s->twins[i];
        if (t->host->type == ATTN_TYPE_NONE)
            continue;
        *t->device = *t->host;
        t->device->data = NULL;
        if (t->output && !(t->bits = malloc(t->host->data_bytes + 1)))
            return no_memory();
        st = attn_memory_alloc(s->ctx, t->host->data_bytes, &t->device->data);
        if (st == ATTN_OK && !t->output)
            st = attn_memory_upload(s->ctx, t->device->data, 0, t->host->data,
                                    t->host->data_bytes);
    }
    return st == ATTN_OK ? CLI_GO : cli_fail_attn(st, NULL);
}

/* The first element that differs, by its place in the file. */
static void describe_difference(const twin *t, int64_t run, run_times *times)
{
    const npy_array *a = t->output;
    const char *first = a->data;
    size_t at = 0;
    int64_t rest, index[4] = { 0 };
    char place[100] = "";
    size_t used = 0;

    while (first[at] == t->bits[at])
        at++;
    rest = (int64_t)(at / npy_type_bytes(a->type));
    for (int i = a->rank - 1; i >= 0; i--) {
        index[i] = rest % a->shape[i];
        rest /= a->shape[i];
    }
    for (int i = 0; i < a->rank; i++)
        used += (size_t)snprintf(place + used, sizeof place - used, "%s%lld", i ? ", " : "",
                                 (long long)index[i]);
    snprintf(times->differs, sizeof times->differs,
             "run %lld differs from run 1 at element [%s] of %s", (long long)run + 1, place,
             t->option);
}

/* Outputs start as all zeros, then all ones, in turn: what a run leaves alone
 * differs from the run before. Where it may leave rows alone, always as zeros. */
static attn_status run_once(session *s, int64_t run, run_times *times)
{
    attn_status st = ATTN_OK;

    for (int i = 0; i < s->job->n && st == ATTN_OK; i++) {
        const twin *t = &s->twins[i];
        if (!t->bits || !t->host->data_bytes)
            continue;
        memset(t->bits, (run & 1) && !s->job->partial ? 0xff : 0, t->host->data_bytes);
        st = attn_memory_upload(s->ctx, t->device->data, 0, t->bits, t->host->data_bytes);
    }
    if (st == ATTN_OK)
        st = attn_execute_timed(s->plan, &s->args, NULL, &times->ns[run]);
    if (st == ATTN_OK)
        times->runs = run + 1;
    for (int i = 0; i < s->job->n && st == ATTN_OK; i++) {
        const twin *t = &s->twins[i];
        const size_t bytes = t->host->data_bytes;
        if (!t->bits || !bytes)
            continue;
        st = attn_memory_download(s->ctx, run ? t->bits : t->host->data, t->device->data, 0,
                                  bytes);
        if (st == ATTN_OK && run && !times->differs[0] &&
            memcmp(t->bits, t->host->data, bytes))
            describe_difference(t, run, times);
    }
    return st;
}

static int by_time(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int summarise(run_times *times)
{
    const size_t n = (size_t)times->runs;
    uint64_t *sorted = malloc(n * sizeof *sorted);

    if (!sorted)
        return no_memory();
    memcpy(sorted, times->ns, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_time);
    times->least_ns = sorted[0];
    times->most_ns = sorted[n - 1];
    times->median_ns = sorted[(n - 1) / 2] + (sorted[n / 2] - sorted[(n - 1) / 2]) / 2;
    free(sorted);
    return CLI_GO;
}

int run_repeat(attn_ctx *ctx, const run_job *job, int64_t runs, run_times *times)
{
    session s = { .ctx = ctx,
                  .job = job,
                  .args = { .size = sizeof s.args,
                            .dropout_seed = job->dropout_seed,
                            .dropout_offset = job->dropout_offset } };
    attn_status st = ATTN_OK;
    int status;

    *times = (run_times){ .plan = NULL };
    for (int i = 0; i < job->n; i++) {
        const run_tensor *t = &job->tensor[i];
        void *device = (char *)&s.args + t->place;

        s.twins[i] = (twin){ t->host, device, t->output, t->option, NULL };
    }
    if (!(times->ns = calloc((size_t)runs, sizeof *times->ns)))
        return no_memory();
    status = prepare(&s, times);
    for (int64_t run = 0; run < runs && status == CLI_GO && !times->differs[0]; run++) {
        cli_progress("run %lld of %lld", (long long)run + 1, (long long)runs);
        if ((st = run_once(&s, run, times)) != ATTN_OK)
            status = cli_fail_attn(st, NULL);
    }
    if (status == CLI_GO)
        status = summarise(times);

    for (int i = 0; i < job->n; i++) {
        attn_memory_free(ctx, &s.twins[i].device->data);
        free(s.twins[i].bits);
    }
    attn_memory_free(ctx, &s.args.workspace);
    attn_plan_destroy(&s.plan);
    return status;
}

void run_times_free(run_times *times)
{
    free(times->plan);
    free(times->ns);
    *times = (run_times){ .plan = NULL };
}
