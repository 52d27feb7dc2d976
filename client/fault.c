/*
 * fault.c - what went wrong last, per thread.
 *
 * The last fault is written where a call fails and nowhere else, so a call that succeeds costs
 * nothing, and a caller that saw a negative number finds its details whatever it did with other
 * sessions on other threads.
 */
#include "client/internal.h"
#include "schemas/version.h"

static _Thread_local struct attnd_fault last;

int attnd_fault_raise(int code, enum attnd_field field, uint64_t index, int64_t value,
                      int64_t limit)
{
    return attnd_fault_set(&last, code, field, index, value, limit);
}

int attnd_fault_keep(const struct attnd_fault *fault)
{
    last = *fault;
    return last.code;
}

void attnd_last_fault(struct attnd_fault *fault)
{
    if (fault)
        *fault = last;
}

char *attnd_last_fault_string(char *text, size_t text_bytes)
{
    return attnd_fault_string(&last, text, text_bytes);
}

const char *attnd_version(void)
{
    return ATTND_VERSION;
}
