/*
 * fault.c - what went wrong last, per thread.
 *
 * The last fault is written where a call fails and nowhere else, so a call that succeeds costs
 * nothing, and a caller that saw a negative number finds its details whatever it did with other
 * sessions on other threads.
 */
#include "client/internal.h"
#include "schemas/version.h"

#include <stdio.h>
#include <string.h>

static _Thread_local struct attnd_fault last;
/* Of the service that could not be reached, if that is the last fault; else "". */
static _Thread_local char path[ATTND_FAULT_PATH_BYTES];

int attnd_fault_raise(int code, enum attnd_field field, uint64_t index, int64_t value,
                      int64_t limit)
{
    path[0] = 0;
    return attnd_fault_set(&last, code, field, index, value, limit);
}

int attnd_fault_unreachable(int code, int error, const char *tried)
{
    attnd_fault_raise(code, ATTND_F_SOCKET, 0, error, 0);
    snprintf(path, sizeof(path), "%s", tried);
    return code;
}

int attnd_fault_keep(const struct attnd_fault *fault)
{
    path[0] = 0;
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
    attnd_fault_string(&last, text, text_bytes);
    const size_t length = text_bytes ? strlen(text) : 0;
    if (path[0] && length < text_bytes)
        snprintf(text + length, text_bytes - length, " (%s)", path);
    return text;
}

const char *attnd_version(void)
{
    return ATTND_VERSION;
}
