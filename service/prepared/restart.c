/*
 * restart.c - prepared runs when the worker dies, and when the next one is there.
 *
 * A worker that died holds nothing any more, so every ack that is missing then counts as given. The
 * next worker is sent everything from the beginning: runs first and then their mailboxes, so that
 * no pending launch meets a slot that is still empty.
 */
#include "service/prepared/internal.h"

void attnd_prepared_lost(struct attnd_prepared_runs *prepared_runs)
{
    prepared_runs->lost = 1;
    attnd_control_command_forget(prepared_runs);
    for (uint32_t i = 0; i < ATTND_QUEUE_PREPARED; i++)
        if (prepared_runs->prepared[i].ending)
            attnd_prepared_run_acked(prepared_runs, &prepared_runs->prepared[i], 1, 0);
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++)
        if (prepared_runs->mail[i].state == ATTND_MAIL_CLOSING)
            attnd_prepared_mail_acked(prepared_runs, &prepared_runs->mail[i], 1, 0);
}

int attnd_prepared_resume(struct attnd_prepared_runs *prepared_runs, uint64_t begin_bytes,
                          uint64_t end_bytes)
{
    int rc = attnd_heap_reset(&prepared_runs->scratch, begin_bytes, end_bytes);
    if (rc < 0)
        return rc;
    prepared_runs->lost = 0;
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++)
        prepared_runs->mail[i].scratch_bytes = 0;
    for (uint32_t i = 0; i < ATTND_QUEUE_PREPARED; i++)
        if (prepared_runs->prepared[i].plan &&
            prepared_runs->prepared[i].plan->prepared_runs->first == i)
            attnd_prepared_rescratch(prepared_runs, prepared_runs->prepared[i].plan);
    for (uint32_t i = 0; i < ATTND_QUEUE_PREPARED; i++)
        if (prepared_runs->prepared[i].mail) {
            (void)attnd_prepared_fill(prepared_runs, &prepared_runs->prepared[i]);
            attnd_control_command_prepared(prepared_runs, &prepared_runs->prepared[i]);
        }
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++)
        if (prepared_runs->mail[i].state != ATTND_MAIL_FREE)
            attnd_control_command_mail(prepared_runs, &prepared_runs->mail[i]);
    attnd_control_command_pump(prepared_runs);
    return 0;
}
