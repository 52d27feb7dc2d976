/* progress.c - on a terminal one line that is drawn over; elsewhere a line every ten seconds, so
 * that a log says the replay is alive and little more. */
#include "bench/replay/replay.h"
#include "ipc/wake.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_COLUMNS 60
#define TERMINAL_PERIOD_NS 100000000u
#define LOG_PERIOD_NS 10000000000u

void replay_progress_begin(struct replay_progress *progress, const char *label, uint64_t tokens)
{
    uint64_t now_ns = attnd_clock_ns();

    *progress = (struct replay_progress){.label = label,
                                         .tokens = tokens ? tokens : 1,
                                         .drawn_ns = now_ns,
                                         .start_ns = now_ns,
                                         .terminal = isatty(STDERR_FILENO)};
}

/* The bar takes what the words leave of the line. */
static void draw_bar(char *bar, size_t cells, double part)
{
    for (size_t i = 0; i < cells; i++)
        bar[i] = part * (double)cells > (double)i ? '#' : '.';
    bar[cells] = 0;
}

void replay_progress_line(const struct replay_progress *progress, uint64_t tokens_done,
                          double elapsed_s, char line[REPLAY_PROGRESS_BYTES])
{
    double part = (double)tokens_done / (double)progress->tokens;
    char words[48], bar[LINE_COLUMNS];
    size_t used;

    if (elapsed_s < 1e-3)
        elapsed_s = 1e-3;
    /* Rounded down: 100 % is the end. */
    snprintf(words, sizeof(words), "%3u %%, %.0f tokens/s, %.0f s so far", (unsigned)(100 * part),
             (double)tokens_done / elapsed_s, elapsed_s);
    used = strlen(progress->label) + strlen(words) + strlen(" [] ");
    draw_bar(bar, used < LINE_COLUMNS ? LINE_COLUMNS - used : 0, part);
    snprintf(line, REPLAY_PROGRESS_BYTES, "%s [%s] %s", progress->label, bar, words);
}

void replay_progress_show(struct replay_progress *progress, uint64_t tokens_done)
{
    uint64_t now_ns = attnd_clock_ns();
    uint64_t period_ns = progress->terminal ? TERMINAL_PERIOD_NS : LOG_PERIOD_NS;
    char line[REPLAY_PROGRESS_BYTES];

    if (now_ns - progress->drawn_ns < period_ns)
        return;
    progress->drawn_ns = now_ns;
    progress->drawn = true;
    replay_progress_line(progress, tokens_done, (double)(now_ns - progress->start_ns) * 1e-9, line);
    fprintf(stderr, progress->terminal ? "\r\033[K%s" : "%s\n", line);
}

void replay_progress_end(struct replay_progress *progress)
{
    if (progress->terminal && progress->drawn)
        fputs("\r\033[K", stderr);
}
