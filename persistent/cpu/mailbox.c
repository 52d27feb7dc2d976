/*
 * mailbox.c - doorbells to runs, ends of runs to answers.
 *
 * A doorbell is a word that an engine wrote: it is read once, and what it names must have been
 * prepared for this session, this mailbox and this lane. A doorbell that cannot be taken yet (its
 * plan is held) is left where it is, and the thread that removes the obstacle has it looked at
 * again. An engine that rings a lane whose run is not over finds its ring gone with that run's
 * answer.
 *
 * The order of a run's end: o and lse are stored; the lane is free; R1 answer. An engine that sees
 * the answer may ring again at once.
 */
#include "persistent/cpu/mailbox.h"
#include "persistent/cpu/control.h"
#include "persistent/cpu/mail.h"
#include "persistent/cpu/queue.h"
#include "persistent/cpu/run.h"

#include <limits.h>
#include <stdlib.h>

#include "schemas/atomics.h"
#include "schemas/crash.h"
#include "schemas/futex.h"

int attnd_cpu_mail_init(struct attnd_backend *backend)
{
    const struct attnd_queue_head *head = backend->head;
    struct attnd_cpu_mail *mail = calloc(1, sizeof *mail);
    if (mail == NULL)
        return -ATTND_E_NO_MEMORY;
    (void)pthread_mutex_init(&mail->lock, NULL);
    backend->mail = mail;
    mail->runs_transient = head->runs_transient;
    mail->prepared_count = head->runs - head->runs_transient;
    mail->slots = (struct attnd_mailbox_slot *)(void *)(backend->segment + head->mailboxes_offset);
    /* The daemon has no more commands under way than its ring is long, and each plan that is held
     * is so for a lane of a session. */
    mail->waits_max = head->ring_entries;
    mail->held_max = ATTND_MAILBOXES_MAX * ATTND_LANES_MAX;
    mail->prepared = calloc(mail->prepared_count + 1, sizeof *mail->prepared);
    mail->held = calloc(mail->held_max + 1, sizeof *mail->held);
    mail->waits = calloc(mail->waits_max + 1, sizeof *mail->waits);
    return mail->prepared && mail->held && mail->waits ? 0 : -ATTND_E_NO_MEMORY;
}

void attnd_cpu_mail_free(struct attnd_backend *backend)
{
    struct attnd_cpu_mail *mail = backend->mail;
    if (mail == NULL)
        return;
    (void)pthread_mutex_destroy(&mail->lock);
    free(mail->prepared);
    free(mail->held);
    free(mail->waits);
    free(mail);
}

/* ---- answers ---- */

static void count(uint64_t *sum, uint64_t more)
{
    attnd_poke64(sum, attnd_peek64(sum) + more);
}

void attnd_cpu_mail_answer(struct attnd_cpu_mail *mail, uint32_t mailbox, uint32_t lane,
                           uint32_t code)
{
    struct attnd_mailbox_slot *slot = &mail->slots[mailbox];
    struct attnd_mailbox *box = mail->mailboxes[mailbox].box;
    if (code) {
        attnd_poke32(&slot->errors, attnd_peek32(&slot->errors) + 1);
        attnd_poke32(&slot->error_code, code);
        attnd_poke32(&slot->error_lane, lane);
    }
    if (box == NULL)
        return; /* let go meanwhile */
    if (code)
        (void)attnd_claim32(&box->error[lane], 0, code); /* the first one stays */
    attnd_publish32(&box->doorbell[lane], 1 + code);     /* R1: o, lse and the error */
    attnd_crash(ATTND_CRASH_CPU_DOORBELL_ANSWERED);
    (void)attnd_futex_wake(&box->doorbell[lane], 1); /* which wakes the others of its engine */
}

static void finish(struct attnd_cpu_mail *mail, struct attnd_cpu_prepared *prepared, uint32_t code)
{
    struct attnd_cpu_mailbox *mailbox = &mail->mailboxes[prepared->mailbox];
    prepared->running = 0;
    mailbox->running--;
    mailbox->busy[prepared->lane] = 0;
    count(&mail->slots[prepared->mailbox].runs, 1);
    attnd_cpu_mail_answer(mail, prepared->mailbox, prepared->lane, code);
}

void attnd_cpu_mail_done(struct attnd_backend *backend, struct attnd_cpu_run *run)
{
    struct attnd_cpu_mail *mail = backend->mail;
    (void)pthread_mutex_lock(&mail->lock);
    struct attnd_cpu_prepared *prepared = &mail->prepared[run->index - mail->runs_transient];
    struct attnd_mailbox_slot *slot = &mail->slots[prepared->mailbox];
    count(&slot->tiles, attnd_peek32(&run->executed));
    count(&slot->busy_ns, attnd_peek64(&run->busy_ns));
    count(&slot->kv_bytes, attnd_peek64(&run->kv_bytes));
    finish(mail, prepared, attnd_peek32(&run->error));
    if (mail->waits_count)
        attnd_cpu_mail_answer_due(backend);
    (void)pthread_mutex_unlock(&mail->lock);
}

/* ---- doorbells ---- */

/* The run that the doorbell names, if this mailbox may ring it on this lane; else NULL. */
static struct attnd_cpu_prepared *find(const struct attnd_cpu_mail *mail, uint32_t index,
                                       uint32_t lane, uint32_t value)
{
    uint32_t number = value - ATTND_DOORBELL_RUNG;
    uint32_t place = number % ATTND_DOORBELL_SLOTS - mail->runs_transient;
    if (place >= mail->prepared_count)
        return NULL;
    struct attnd_cpu_prepared *prepared = &mail->prepared[place];
    const struct attnd_run *body = &prepared->body;
    int is = body->kind == ATTND_RUN_ATTEND && body->mailbox == index && body->lane == lane &&
             body->session == mail->mailboxes[index].session &&
             body->serial == number / ATTND_DOORBELL_SLOTS;
    return is ? prepared : NULL;
}

/* Return: 1 if a run was published. */
static int begin(struct attnd_backend *backend, struct attnd_cpu_prepared *prepared)
{
    struct attnd_cpu_mail *mail = backend->mail;
    const struct attnd_run *body = &prepared->body;
    uint32_t index = mail->runs_transient + (uint32_t)(prepared - mail->prepared);
    struct attnd_cpu_mailbox *mailbox = &mail->mailboxes[body->mailbox];
    prepared->running = 1;
    prepared->mailbox = body->mailbox;
    prepared->lane = body->lane;
    prepared->plan_offset_bytes = body->plan_offset_bytes;
    mailbox->running++;
    mailbox->busy[body->lane] = 1;

    int64_t items = body->code ? -(int64_t)body->code : attnd_cpu_run_open(backend, index, body);
    if (items > 0) {
        attnd_cpu_queue_publish(&backend->queue, &backend->queue.runs[index], body,
                                (uint32_t)items);
        return 1;
    }
    finish(mail, prepared, (uint32_t)-items);
    return 0;
}

/* Return: 1 if a run was published. */
static int look(struct attnd_backend *backend, uint32_t index, uint32_t lane)
{
    struct attnd_cpu_mail *mail = backend->mail;
    struct attnd_cpu_mailbox *mailbox = &mail->mailboxes[index];
    uint32_t *doorbell = &mailbox->box->doorbell[lane];
    uint32_t value = attnd_observe32(doorbell); /* A1: q */
    if (!attnd_doorbell_rung(value) || mailbox->busy[lane])
        return 0;
    struct attnd_cpu_prepared *prepared = find(mail, index, lane, value);
    if (prepared &&
        (prepared->running || attnd_cpu_mail_held(mail, prepared->body.plan_offset_bytes)))
        return 0;
    if (!attnd_claim32(doorbell, value, 0)) { /* rung again meanwhile, with something else */
        mailbox->rescan = 1;
        return 0;
    }
    attnd_crash(ATTND_CRASH_CPU_DOORBELL_TAKEN);
    if (prepared)
        return begin(backend, prepared);
    count(&mail->slots[index].runs, 1);
    attnd_cpu_mail_answer(mail, index, lane, ATTND_E_UNKNOWN);
    return 0;
}

int attnd_cpu_mail_scan(struct attnd_backend *backend)
{
    struct attnd_cpu_mail *mail = backend->mail;
    int published = 0;
    (void)pthread_mutex_lock(&mail->lock);
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++) {
        struct attnd_cpu_mailbox *mailbox = &mail->mailboxes[i];
        if (mailbox->box == NULL)
            continue;
        uint32_t rung = attnd_observe32(&mailbox->box->rung); /* A1: the doorbells before it */
        if (rung == mailbox->seen && !mailbox->rescan)
            continue;
        mailbox->seen = rung;
        mailbox->rescan = 0;
        for (uint32_t lane = 0; lane < ATTND_LANES_MAX; lane++)
            published |= look(backend, i, lane);
    }
    (void)pthread_mutex_unlock(&mail->lock);
    return published;
}
