/* SPDX-License-Identifier: MIT */
/* tools/cli.h: what the command-line tools share: options, errors, progress. */
#ifndef ATTN_TOOLS_CLI_H
#define ATTN_TOOLS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include <attn/attn.h>

#include "problem.h"

/* Exit statuses. Functions that may end the tool return one of them, or CLI_GO
 * for "go on"; what is wrong has then been said, in one line on stderr. */
enum {
    CLI_GO = -1,
    CLI_OK = 0,
    CLI_FAILED = 1,       /* a check failed                             */
    CLI_BAD = 2,          /* bad arguments or input                     */
    CLI_NOTHING = 3       /* nothing could run: no device, unsupported  */
};

/* One option, always long. --help, --version, --device and --json belong to
 * every tool and stand in no table. */
typedef struct cli_option {
    const char *name;     /* without the dashes; NULL ends a table              */
    int key;              /* what take() receives                               */
    const char *value;    /* its value as --help writes it; NULL: takes none    */
    const char *about;    /* one line of --help                                 */
    const char *absent;   /* not NULL: known, but of this feature, which is not
                           * there yet; refused with CLI_NOTHING                */
    bool many;            /* may be given more than once                        */
} cli_option;

/* Takes one option, or an argument that is no option (key CLI_ARGUMENT).
 * Returns CLI_GO or an exit status. */
enum { CLI_ARGUMENT = -1 };
typedef int cli_take(void *to, int key, const char *value);

typedef struct cli_tool {
    const char *name;            /* "attn-run": starts every message            */
    const char *command;         /* "attn-run linear": has --help; NULL: name   */
    const char *usage;           /* what follows the name, lines apart by \n    */
    const char *about;           /* what it does, for --help                    */
    const cli_option *options;
    cli_take *take;
    const char *device_about;    /* of --device in --help; NULL: the usual line */
} cli_tool;

/* The options that all tools have. */
typedef struct cli_common {
    const char *device;          /* for attn_ctx_create(); NULL: not given      */
    bool json;
} cli_common;

/* Reads the command line from argv[1] on. CLI_GO, or an exit status: --help and
 * --version have printed, or an error. Options must be spelled in full. */
int cli_parse(const cli_tool *tool, int argc, char **argv, cli_common *common, void *to);

/* Values of options; `option` is the name for the message. CLI_GO or CLI_BAD. */
int cli_integer(const char *option, const char *text, int64_t least, int64_t most,
                int64_t *out);
int cli_number(const char *option, const char *text, double *out);   /* finite */

/* One of `words`, a table that ends with NULL: its place in it. */
int cli_word(const char *option, const char *text, const char *const words[], int *out);

/* Says one line on stderr, "TOOL: ...", and returns `status`. A line break in it
 * becomes "; ", another control character "?". */
__attribute__((format(printf, 2, 3)))
int cli_fail(int status, const char *format, ...);

/* The exit status that stands for a library status, which is not ATTN_OK; says
 * attn_last_error(). With `what` not NULL in front: "what: ...". */
int cli_fail_attn(attn_status st, const char *what);

/* Flushes stdout; an error there becomes CLI_BAD. The last call of main(). */
int cli_end(int status);

/* Opens the device that was asked for. */
int cli_open(const cli_common *common, attn_ctx **out);

/* Says on stdout what the planner does with a problem, or with `into` not NULL
 * adds that to the object as "problem", "variants" and "explanation". CLI_GO if
 * it can run with `options` (their variant NULL: any); otherwise CLI_BAD if there is
 * no such variant, and CLI_NOTHING with the reason. */
int cli_explain(attn_ctx *ctx, const problem *p, const attn_options *options, cJSON *into);

/* Adds a string, NULL as null. What is not UTF-8 (a file's name may be anything)
 * becomes U+FFFD, so that the document stays JSON. */
void cli_json_text(cJSON *object, const char *name, const char *text);

/* Prints a document and frees it. CLI_GO, or an exit status if memory is out. */
int cli_json_print(cJSON *document);

/* What the tool is at. Where stderr is a terminal, a line there shows it and the
 * seconds since the first call, once those are more than one. cli_progress_end()
 * wipes it: call it before writing to stdout. Every error does so too. Call all
 * from one thread. (cli_progress.c) */
__attribute__((format(printf, 1, 2)))
void cli_progress(const char *format, ...);
void cli_progress_end(void);

#endif
