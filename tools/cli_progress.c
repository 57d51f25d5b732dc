/* SPDX-License-Identifier: MIT */
/* tools/cli_progress.c: a line on a terminal for what takes over a second. */
#define _GNU_SOURCE
#include "cli.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_MS = 1000, TICK_MS = 500, LINE = 256 };

/* A thread of its own draws it, since a plan or a run blocks the caller. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    pthread_t thread;
    bool running, stop; /* `running` belongs to the caller's thread */
    char text[LINE];
    int width; /* of what stands on the line; 0: nothing   */
    struct timespec start;
} line = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int columns(void)
{
    struct winsize size;
    int n = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
    return n > 20 && n < LINE ? n - 1 : 79;
}

static void wipe(void)
{
    if (line.width)
        fprintf(stderr, "\r%*s\r", line.width, "");
    line.width = 0;
}

static void draw(void)
{
    struct timespec now;
    char text[LINE + 32];
    int width = columns();

    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(
        text, sizeof text, "%s, %lld s", line.text,
        (long long)(now.tv_sec - line.start.tv_sec - (now.tv_nsec < line.start.tv_nsec)));
    wipe();
    if ((int)strlen(text) < width)
        width = (int)strlen(text);
    fprintf(stderr, "%.*s", width, text);
    fflush(stderr);
    line.width = width;
}

static struct timespec later(struct timespec t, int ms)
{
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    t.tv_sec += ms / 1000 + t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

static void *run(void *none)
{
    struct timespec next = later(line.start, FIRST_MS);

    (void)none;
    pthread_mutex_lock(&line.lock);
    while (!line.stop) {
        if (pthread_cond_timedwait(&line.stopped, &line.lock, &next) == 0 || line.stop)
            continue;
        draw();
        next = later(next, TICK_MS);
    }
    wipe();
    fflush(stderr);
    pthread_mutex_unlock(&line.lock);
    return NULL;
}

static void start(void)
{
    pthread_condattr_t clock;

    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&line.stopped, &clock);
    pthread_condattr_destroy(&clock);
    clock_gettime(CLOCK_MONOTONIC, &line.start);
    line.stop = false;
    line.running = pthread_create(&line.thread, NULL, run, NULL) == 0;
    if (!line.running)
        pthread_cond_destroy(&line.stopped);
}

void cli_progress(const char *format, ...)
{
    va_list args;

    if (!isatty(STDERR_FILENO))
        return;
    pthread_mutex_lock(&line.lock);
    va_start(args, format);
    vsnprintf(line.text, sizeof line.text, format, args);
    va_end(args);
    for (char *c = line.text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    pthread_mutex_unlock(&line.lock);
    if (!line.running)
        start();
}

void cli_progress_end(void)
{
    if (!line.running)
        return;
    pthread_mutex_lock(&line.lock);
    line.stop = true;
    pthread_cond_signal(&line.stopped);
    pthread_mutex_unlock(&line.lock);
    pthread_join(line.thread, NULL);
    pthread_cond_destroy(&line.stopped);
    line.running = false;
}
