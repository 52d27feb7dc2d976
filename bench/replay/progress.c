/* progress.c - on a terminal one line that is drawn over; elsewhere a line every ten seconds, so
 * that a log says the replay is alive and little more. */
#include "bench/replay/replay.h"
#include "ipc/wake.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define BAR_CELLS 32
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

void replay_progress_show(struct replay_progress *progress, uint64_t tokens_done)
{
    uint64_t now_ns = attnd_clock_ns();
    uint64_t period_ns = progress->terminal ? TERMINAL_PERIOD_NS : LOG_PERIOD_NS;
    double part = (double)tokens_done / (double)progress->tokens;
    double elapsed_s = (double)(now_ns - progress->start_ns) * 1e-9;
    char bar[BAR_CELLS + 1] = {0};

    if (now_ns - progress->drawn_ns < period_ns)
        return;
    progress->drawn_ns = now_ns;
    progress->drawn = true;
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = part * BAR_CELLS > i ? '#' : '.';
    fprintf(stderr,
            progress->terminal ? "\r\033[K%s [%s] %3.0f %%  %.0f tokens/s  %.0f s"
                               : "%s [%s] %3.0f %%  %.0f tokens/s  %.0f s\n",
            progress->label, bar, 100 * part, (double)tokens_done / elapsed_s, elapsed_s);
}

void replay_progress_end(struct replay_progress *progress)
{
    if (progress->terminal && progress->drawn)
        fputs("\r\033[K", stderr);
}
