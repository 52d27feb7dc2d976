/* quiet_loop.c - hooks that do nothing. */
#include "tests/support/harness/quiet_loop.h"

static int sweep(void *context)
{
    (void)context;
    return 0;
}

static void asleep(void *context, int is_asleep)
{
    (void)context;
    (void)is_asleep;
}

int quiet_loop_new(enum attnd_loop_kind kind, struct attnd_loop **out)
{
    const struct attnd_loop_hooks hooks = {.sweep = sweep, .asleep = asleep};
    struct attnd_fault fault = {0};

    return attnd_loop_new(kind, 0, &hooks, out, &fault);
}
