/* fail.c - what an engine says to its parent: why it cannot go on, and how far it is. */
#include "bench/replay/engine.h"
#include "schemas/atomics.h"

#include <stdarg.h>
#include <stdio.h>

int replay_fail(struct replay_engine *engine, const char *format, ...)
{
    va_list args;

    if (engine->out->error[0])
        return -1;
    va_start(args, format);
    vsnprintf(engine->out->error, sizeof(engine->out->error), format, args);
    va_end(args);
    return -1;
}

int replay_fail_call(struct replay_engine *engine, const char *call, int code)
{
    struct attnd_fault fault;
    char text[160];

    attnd_last_fault(&fault);
    if (fault.code != code)
        fault = (struct attnd_fault){.code = code};
    return replay_fail(engine, "%s: %s", call, attnd_fault_string(&fault, text, sizeof(text)));
}

/* The one figure the parent reads while it is written. */
void replay_progress_add(struct replay_engine *engine, uint64_t tokens)
{
    uint64_t *done = &engine->stats->tokens_done;

    attnd_poke64(done, attnd_peek64(done) + tokens);
}
