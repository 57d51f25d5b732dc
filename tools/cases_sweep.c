/* SPDX-License-Identifier: MIT */
/* tools/cases_sweep.c: every problem of a list with every number of a sweep in turn. */
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "cli.h"

/* false: there is no size of that name. */
static bool set_swept(attn_softmax_desc *d, const char *what, size_t n, int64_t value)
{
    const struct {
        const char *what;
        int64_t *to[2];
    } swept[] = {
        { "l", { &d->len_q, &d->len_kv } },     { "lq", { &d->len_q, NULL } },
        { "lk", { &d->len_kv, NULL } },         { "b", { &d->batch, NULL } },
        { "h", { &d->heads_q, &d->heads_kv } }, { "d", { &d->dim_qk, NULL } },
    };

    for (size_t i = 0; i < sizeof swept / sizeof swept[0]; i++) {
        if (strlen(swept[i].what) != n || strncmp(swept[i].what, what, n))
            continue;
        if (swept[i].to[0] == &d->dim_qk && d->dim_v == d->dim_qk)
            d->dim_v = value;
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
            attn_softmax_desc d = list->item[i].desc;
            const size_t n = strcspn(++at, ",");
            char text[32];
            int64_t value = 0;

            snprintf(text, sizeof text, "%.*s", (int)n, at);
            at += n;
            status = cli_integer("--sweep", text, 0, INT32_MAX, &value);
            if (status == CLI_GO && !set_swept(&d, sweep, name, value))
                status =
                    cli_fail(CLI_BAD, "--sweep is over '%.*s', want l, lq, lk, b, h or d",
                             (int)name, sweep);
            if (status == CLI_GO)
                status = cases_add_desc(&swept, &d);
        }
    }
    cases_free(list);
    *list = swept;
    return status;
}
