/*
 * health.c - does every item that was begun get on?
 *
 * A worker thread counts when it begins a share, when it is done with it, and some ten thousand
 * times a second in between. One that is in the middle of a share and did not count in many looks
 * in a row will not end: its memory does not answer, or there is a bug. Looks are counted and not
 * seconds, because a process that was stopped for a while is well.
 */
#include <stdio.h>

#include "persistent/cpu/ops.h"

int attnd_cpu_check(struct attnd_backend *backend, char *report, size_t report_bytes)
{
    for (uint32_t i = 0; i < backend->threads; i++) {
        struct attnd_cpu_worker *worker = &backend->workers[i];
        const uint32_t progress = attnd_peek32(&worker->counted);
        if (progress % 2 == 0 || progress / 2 != worker->seen)
            worker->still = 0;
        worker->seen = progress / 2;
        if (progress % 2 == 0 || ++worker->still < ATTND_CPU_STILL_LOOKS)
            continue;
        (void)snprintf(report, report_bytes, "tiles-%u: an item has not moved in %u looks", i,
                       ATTND_CPU_STILL_LOOKS);
        return -ATTND_E_TIMEOUT;
    }
    return 0;
}
