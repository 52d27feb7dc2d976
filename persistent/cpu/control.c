/*
 * control.c - commands about mailboxes, prepared runs and plans.
 *
 * Most are a word to write and are answered on the spot. Three may find a run in flight (a mailbox
 * that is let go, a run that is replaced, a plan that is held) and are answered by the thread that
 * ends it.
 */
#include <string.h>

#include "persistent/cpu/control.h"
#include "persistent/cpu/doorbell.h"
#include "persistent/cpu/mail.h"
#include "persistent/cpu/mailbox.h"
#include "persistent/cpu/memory.h"
#include "persistent/cpu/run.h"
#include "schemas/atomics.h"

static void answer(struct attnd_backend *backend, const struct attnd_cpu_wait *wait)
{
    const struct attnd_retire retire = {
        .run = wait->run, .code = wait->code, .kind = wait->kind, .tag = wait->tag};
    attnd_cpu_retire(backend, &retire);
}

/* ---- waiting ---- */

static int plan_runs(const struct attnd_cpu_mail *mail, uint64_t plan_offset_bytes)
{
    for (uint32_t i = 0; i < mail->prepared_count; i++)
        if (mail->prepared[i].running && mail->prepared[i].plan_offset_bytes == plan_offset_bytes)
            return 1;
    return 0;
}

static int must_wait(const struct attnd_cpu_mail *mail, const struct attnd_cpu_wait *wait)
{
    switch (wait->kind) {
    case ATTND_COMMAND_MAILBOX:
        return mail->mailboxes[wait->run].box == NULL && mail->mailboxes[wait->run].running > 0;
    case ATTND_COMMAND_PREPARED:
        return mail->prepared[wait->run - mail->runs_transient].running != 0;
    case ATTND_COMMAND_HOLD:
        return plan_runs(mail, wait->plan_offset_bytes);
    default:
        return 0;
    }
}

void attnd_cpu_mail_answer_due(struct attnd_backend *backend)
{
    struct attnd_cpu_mail *mail = backend->mail;
    uint32_t kept = 0, count = mail->waits_count;
    for (uint32_t i = 0; i < count; i++) {
        if (must_wait(mail, &mail->waits[i]))
            mail->waits[kept++] = mail->waits[i];
        else
            answer(backend, &mail->waits[i]);
    }
    mail->waits_count = kept;
}

static void answer_or_wait(struct attnd_backend *backend, const struct attnd_cpu_wait *wait)
{
    struct attnd_cpu_mail *mail = backend->mail;
    if (must_wait(mail, wait) && mail->waits_count < mail->waits_max)
        mail->waits[mail->waits_count++] = *wait;
    else
        answer(backend, wait);
}

/* ---- mailboxes ---- */

static void make_empty(struct attnd_mailbox *box)
{
    for (uint32_t lane = 0; lane < ATTND_LANES_MAX; lane++) {
        attnd_poke32(&box->error[lane], 0);
        attnd_publish32(&box->doorbell[lane], 1);
    }
}

/* Taken, and not answered: by a worker that is no more. */
static void release_lost(struct attnd_cpu_mail *mail, uint32_t index)
{
    const struct attnd_mailbox *box = mail->mailboxes[index].box;
    for (uint32_t lane = 0; lane < ATTND_LANES_MAX; lane++)
        if (attnd_doorbell_taken(attnd_observe32(&box->doorbell[lane]))) {
            attnd_poke64(&mail->slots[index].runs, attnd_peek64(&mail->slots[index].runs) + 1);
            attnd_cpu_mail_answer(mail, index, lane, ATTND_E_WORKER_RESTARTED);
        }
}

/* Nobody will read what these runs were to store. */
static void abandon(struct attnd_backend *backend, uint32_t index)
{
    const struct attnd_cpu_mail *mail = backend->mail;
    for (uint32_t i = 0; i < mail->prepared_count; i++)
        if (mail->prepared[i].running && mail->prepared[i].mailbox == index)
            attnd_poke32(&backend->queue.runs[mail->runs_transient + i].let_go, 1);
}

/* Return: 0, or why the mailbox cannot be watched. */
static int32_t watch(struct attnd_backend *backend, uint32_t index)
{
    struct attnd_cpu_mail *mail = backend->mail;
    const struct attnd_mailbox_slot *slot = &mail->slots[index];
    struct attnd_cpu_mailbox *mailbox = &mail->mailboxes[index];

    mailbox->box = NULL;
    if (slot->memory == ATTND_NONE) {
        abandon(backend, index);
        return 0;
    }
    struct attnd_mailbox *box = attnd_cpu_memory_at(backend, slot->memory, slot->offset_bytes);
    if (box == NULL ||
        attnd_cpu_memory_at(backend, slot->memory, slot->offset_bytes + sizeof *box - 1) == NULL)
        return -ATTND_E_UNKNOWN;
    if (slot->offset_bytes % ATTND_CACHE_LINE)
        return -ATTND_E_RANGE;
    mailbox->box = box;
    mailbox->session = slot->session;
    mailbox->rescan = 1;
    if (slot->fresh)
        make_empty(box);
    else
        release_lost(mail, index);
    return 0;
}

/* ---- plans ---- */

int attnd_cpu_mail_held(const struct attnd_cpu_mail *mail, uint64_t plan_offset_bytes)
{
    for (uint32_t i = 0; i < mail->held_count; i++)
        if (mail->held[i] == plan_offset_bytes)
            return 1;
    return 0;
}

static void hold(struct attnd_cpu_mail *mail, uint64_t plan_offset_bytes)
{
    if (mail->held_count < mail->held_max && !attnd_cpu_mail_held(mail, plan_offset_bytes))
        mail->held[mail->held_count++] = plan_offset_bytes;
}

static void show(struct attnd_cpu_mail *mail, const struct attnd_run *shown)
{
    for (uint32_t i = 0; i < mail->held_count; i++)
        if (mail->held[i] == shown->plan_offset_bytes)
            mail->held[i] = mail->held[--mail->held_count];
    for (uint32_t i = 0; i < mail->prepared_count; i++) {
        struct attnd_run *body = &mail->prepared[i].body;
        if (body->kind == 0 || body->plan_offset_bytes != shown->plan_offset_bytes)
            continue;
        body->generation = shown->generation;
        body->items = shown->items;
    }
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++)
        mail->mailboxes[i].rescan = 1;
}

/* ---- prepared runs ---- */

static int32_t prepare(struct attnd_backend *backend, uint32_t number, const struct attnd_run *run)
{
    struct attnd_run *body = &backend->mail->prepared[number].body;
    int code = 0;
    *body = *run;
    if (run->kind == ATTND_RUN_ATTEND && run->code == 0)
        code = attnd_cpu_run_check(backend, run);
    else if (run->kind != 0 && run->kind != ATTND_RUN_ATTEND)
        code = -ATTND_E_UNSUPPORTED;
    if (code)
        body->code = (uint32_t)-code;
    return code;
}

void attnd_cpu_mail_command(struct attnd_backend *backend, const struct attnd_command *command)
{
    struct attnd_cpu_mail *mail = backend->mail;
    struct attnd_cpu_wait wait = {.kind = command->kind,
                                  .run = command->run,
                                  .tag = command->tag,
                                  .plan_offset_bytes = command->body.plan_offset_bytes};
    uint32_t number = command->run - mail->runs_transient;

    (void)pthread_mutex_lock(&mail->lock);
    if (command->kind == ATTND_COMMAND_MAILBOX && command->run < ATTND_MAILBOXES_MAX) {
        wait.code = watch(backend, command->run);
        attnd_cpu_doorbell_watch(mail);
    } else if (command->kind == ATTND_COMMAND_PREPARED && number < mail->prepared_count) {
        wait.code = prepare(backend, number, &command->body);
    } else if (command->kind == ATTND_COMMAND_HOLD) {
        hold(mail, wait.plan_offset_bytes);
    } else if (command->kind == ATTND_COMMAND_PUBLISH) {
        show(mail, &command->body);
    } else { /* the daemon's own bug; it waits for an answer all the same */
        wait.code = -ATTND_E_UNSUPPORTED;
    }
    if (wait.code == 0)
        answer_or_wait(backend, &wait);
    else
        answer(backend, &wait);
    (void)pthread_mutex_unlock(&mail->lock);
}
