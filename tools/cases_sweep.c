/* SPDX-License-Identifier: MIT */
/* tools/cases_sweep.c: every problem of a list with every number of a sweep in turn. */
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "cli.h"

/* The sizes of a problem of either operation. */
typedef struct sizes {
    int64_t *b, *hq, *hkv, *lq, *lk, *d, *dv;
} sizes;

static sizes sizes_of(problem *p)
{
    attn_softmax_desc *s = &p->softmax;
    attn_linear_desc *l = &p->linear;

    if (p->is_linear)
        return (sizes){ &l->batch,  &l->heads_q, &l->heads_kv, &l->len_q,
                        &l->len_kv, &l->dim_qk,  &l->dim_v };
    return (sizes){ &s->batch,  &s->heads_q, &s->heads_kv, &s->len_q,
                    &s->len_kv, &s->dim_qk,  &s->dim_v };
}

/* false: there is no size of that name. */
static bool set_swept(problem *p, const char *what, size_t n, int64_t value)
{
    const sizes z = sizes_of(p);
    const struct {
        const char *what;
        int64_t *to[2];
    } swept[] = {
        { "l", { z.lq, z.lk } }, { "lq", { z.lq, NULL } }, { "lk", { z.lk, NULL } },
        { "b", { z.b, NULL } },  { "h", { z.hq, z.hkv } }, { "d", { z.d, NULL } },
    };

    for (size_t i = 0; i < sizeof swept / sizeof swept[0]; i++) {
        if (strlen(swept[i].what) != n || strncmp(swept[i].what, what, n))
            continue;
        if (swept[i].to[0] == z.d && *z.dv == *z.d)
            *z.dv = value;
        for (int k = 0; k < 2 && swept[i].to[k]; k++)
            *swept[i].to[k] = value;
        return true;
    }
    return false;
}

int cases_sweep(case_list *list, const char *sweep)
{
    const size_t name = strcspn(sweep, "=");
    case_list swept = { 0 };
    int status = CLI_GO;

    if (!sweep[name] || !sweep[name + 1])
        return cli_fail(CLI_BAD, "--sweep is '%s', want a form such as l=512,1024,2048",
                        sweep);
    for (size_t i = 0; i < list->n && status == CLI_GO; i++) {
        const char *at = sweep + name;

        while (*at && status == CLI_GO) {
            problem p = list->item[i].problem;
            const size_t n = strcspn(++at, ",");
            char text[32];
            int64_t value = 0;

            snprintf(text, sizeof text, "%.*s", (int)n, at);
            at += n;
            status = cli_integer("--sweep", text, 0, INT32_MAX, &value);
            if (status == CLI_GO && !set_swept(&p, sweep, name, value))
                status =
                    cli_fail(CLI_BAD, "--sweep is over '%.*s', want l, lq, lk, b, h or d",
                             (int)name, sweep);
            if (status == CLI_GO)
                status = cases_add_problem(&swept, &p);
        }
    }
    cases_free(list);
    *list = swept;
    return status;
}
