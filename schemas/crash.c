/* crash.c - in test builds: a process that ends or stops itself where a test wants it to. */
#include "schemas/crash.h"

#ifdef ATTND_CRASH_POINTS
#include "schemas/atomics.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *attnd_crash_name(enum attnd_crash_point point)
{
#define NAME(name) [ATTND_CRASH_##name] = #name,
    static const char *const names[] = {ATTND_CRASH_POINT_LIST(NAME)};
#undef NAME
    return names[point];
}

void attnd_crash(enum attnd_crash_point point)
{
    static uint32_t times;
    char name[64], file[160];
    int signal;
    unsigned count;
    const char *wanted = getenv("ATTND_CRASH");

    if (!wanted || sscanf(wanted, "%63s %d %u %159s", name, &signal, &count, file) != 4 ||
        strcmp(name, attnd_crash_name(point)) != 0 || access(file, F_OK) < 0 ||
        attnd_arrive32(&times, 1) + 1 < count || unlink(file) < 0)
        return;
    (void)raise(signal);
}
#endif
