/*
 * stream_note.c - what the worker is told beside runs, one note a command, and its answers.
 *
 * Notes wait in one line. A note says what it is about, not what it will say: that is looked up
 * when it is sent, so an object that changes twice while its note waits is told of once, and
 * newest. The line is kept except where something must wait for the worker to map memory; a note
 * that is passed over meanwhile says the newest too, and mailboxes wait for all their runs; and
 * except for the HOLDs of a session that has many out. Rings have room for ATTND_QUEUE_CONTROLS of
 * them at once, which is what runs leave, so neither crowds the other out.
 */
#include "service/prepared/prepared.h"

#include <assert.h>

void attnd_control_command_init(struct attnd_prepared_runs *prepared_runs)
{
    prepared_runs->controls_begin = prepared_runs->controls_count = 0;
    prepared_runs->sent_count = prepared_runs->free_sent = 0;
    for (uint32_t tag = 0; tag < ATTND_QUEUE_CONTROLS; tag++)
        prepared_runs->sent[tag] = (struct attnd_control_command){
            .next_free = tag + 1 < ATTND_QUEUE_CONTROLS ? tag + 1 : ATTND_NONE};
}

/* ---- the line ---- */

static void line_up(struct attnd_prepared_runs *prepared_runs,
                    const struct attnd_control_command *note)
{
    if (prepared_runs->controls_count ==
        ATTND_CONTROL_COMMANDS_MAX) { /* the worker has not answered for very long */
        prepared_runs->scheduler->queue_broken = 1;
        return;
    }
    uint32_t end = (prepared_runs->controls_begin + prepared_runs->controls_count++) %
                   ATTND_CONTROL_COMMANDS_MAX;
    prepared_runs->notes[end] = *note;
}

static struct attnd_control_command step_up(struct attnd_prepared_runs *prepared_runs)
{
    assert(prepared_runs->controls_count);
    struct attnd_control_command note = prepared_runs->notes[prepared_runs->controls_begin];
    prepared_runs->controls_begin =
        (prepared_runs->controls_begin + 1) % ATTND_CONTROL_COMMANDS_MAX;
    prepared_runs->controls_count--;
    return note;
}

void attnd_control_command_mail(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail)
{
    if (prepared_runs->lost || mail->due)
        return;
    mail->due = 1;
    line_up(prepared_runs,
            &(struct attnd_control_command){.kind = ATTND_COMMAND_MAILBOX,
                                            .index = attnd_mail_index(prepared_runs, mail)});
}

void attnd_control_command_prepared(struct attnd_prepared_runs *prepared_runs,
                                    struct attnd_prepared *prepared)
{
    if (prepared_runs->lost || prepared->due)
        return;
    prepared->due = 1;
    prepared->mail->runs_due++;
    line_up(prepared_runs,
            &(struct attnd_control_command){.kind = ATTND_COMMAND_PREPARED,
                                            .index = attnd_prepared_index(prepared_runs, prepared),
                                            .serial = prepared->serial});
}

void attnd_control_command_plan(struct attnd_prepared_runs *prepared_runs, uint32_t kind,
                                struct attnd_sched_op *op)
{
    assert(!prepared_runs->lost);
    line_up(prepared_runs, &(struct attnd_control_command){.kind = kind, .op = op});
}

/* ---- sending ---- */

enum readiness { VOID, NOT_YET, READY };

static int mapped(const struct attnd_prepared_runs *prepared_runs,
                  const struct attnd_memory *memory)
{
    return memory ? attnd_maps_ready(prepared_runs->scheduler->maps, memory->index) : 1;
}

/* Return: 1 all that the run names is mapped; 0 not yet; -ATTND_E_* it never will be. */
static int run_mapped(const struct attnd_prepared_runs *prepared_runs,
                      const struct attnd_prepared *prepared)
{
    const struct attnd_pool *pool = prepared->plan->attachment->pool;
    int rc = 1;
    for (uint32_t i = 0; i < ATTND_RUN_PLACES && rc > 0; i++)
        rc = mapped(prepared_runs, prepared->memories[i]);
    for (uint32_t i = 0; i < pool->memories_count && rc > 0; i++)
        rc = mapped(prepared_runs, pool->memories[i]);
    return rc;
}

static enum readiness ready_prepared(struct attnd_prepared_runs *prepared_runs,
                                     const struct attnd_control_command *note)
{
    struct attnd_prepared *prepared = &prepared_runs->prepared[note->index];
    struct attnd_run *run = attnd_prepared_run(prepared_runs, prepared);

    if (prepared->serial != note->serial || !prepared->mail)
        return VOID;
    if (prepared->mail->state == ATTND_MAIL_CLOSING)
        return VOID;
    if (prepared->ending || run->code)
        return READY;
    if (attnd_prepared_changing(prepared->plan)) /* the worker looks at the plan */
        return NOT_YET;
    int rc = run_mapped(prepared_runs, prepared);
    if (rc < 0)
        run->code = (uint32_t)-rc;
    return rc ? READY : NOT_YET;
}

static enum readiness ready_mail(const struct attnd_prepared_runs *prepared_runs,
                                 const struct attnd_control_command *note)
{
    const struct attnd_mail *mail = &prepared_runs->mail[note->index];
    if (mail->state == ATTND_MAIL_CLOSING)
        return READY;
    if (mail->runs_due)
        return NOT_YET;
    return mapped(prepared_runs, mail->memory) ? READY
                                               : NOT_YET; /* if it never is, the worker says so */
}

static enum readiness ready_hold(const struct attnd_control_command *note)
{
    return note->op->lane->session->holds < ATTND_HOLDS_SESSION_MAX ? READY : NOT_YET;
}

static enum readiness ready(struct attnd_prepared_runs *prepared_runs,
                            const struct attnd_control_command *note)
{
    if (note->kind == ATTND_COMMAND_PREPARED)
        return ready_prepared(prepared_runs, note);
    if (note->kind == ATTND_COMMAND_HOLD)
        return ready_hold(note);
    return note->kind == ATTND_COMMAND_MAILBOX ? ready_mail(prepared_runs, note) : READY;
}

/* Takes the object's word for what the note says, and counts it as told. */
static void fill(struct attnd_prepared_runs *prepared_runs, struct attnd_control_command *note,
                 struct attnd_command *command)
{
    if (note->kind == ATTND_COMMAND_PREPARED) {
        struct attnd_prepared *prepared = &prepared_runs->prepared[note->index];
        struct attnd_run *run = attnd_prepared_run(prepared_runs, prepared);
        command->run = ATTND_QUEUE_RUNS + note->index;
        if (!prepared->ending) { /* a PUBLISH may have overtaken what waited for its memory */
            run->generation = prepared->plan->generation;
            run->items = prepared->plan->filled ? prepared->plan->tile_items : 0;
        }
        command->body = *run;
        if (!prepared->ending)
            attnd_dispatch_fill(prepared->plan, run, command);
        note->ending = prepared->ending;
        prepared->notes++;
        prepared->mail->notes++;
        return;
    }
    if (note->kind == ATTND_COMMAND_MAILBOX) {
        struct attnd_mail *mail = &prepared_runs->mail[note->index];
        command->run = note->index;
        note->ending = mail->state == ATTND_MAIL_CLOSING;
        mail->notes++;
        return;
    }
    if (note->kind == ATTND_COMMAND_HOLD)
        note->op->lane->session->holds++;
    const struct attnd_plan_object *plan = note->op->plan;
    command->set_version = plan->set_version;
    command->advance_version = plan->advance_version;
    command->body.plan_offset_bytes = plan->heap_offset_bytes;
    command->body.generation = plan->generation;
    command->body.items = plan->filled ? plan->tile_items : 0;
}

static void send(struct attnd_prepared_runs *prepared_runs, struct attnd_control_command *note)
{
    struct attnd_scheduler *scheduler = prepared_runs->scheduler;
    uint32_t tag = prepared_runs->free_sent;
    struct attnd_command command = {.kind = note->kind, .tag = tag};
    fill(prepared_runs, note, &command);
    prepared_runs->free_sent = prepared_runs->sent[tag].next_free;
    prepared_runs->sent[tag] = *note;
    prepared_runs->sent_count++;
    if (attnd_queue_push(scheduler->queue, &command) < 0)
        scheduler->queue_broken = 1; /* it has room for every note: never full */
    scheduler->commands_pushed = 1;
}

/* It does not wait any more. */
static void not_due(struct attnd_prepared_runs *prepared_runs,
                    const struct attnd_control_command *note)
{
    if (note->kind == ATTND_COMMAND_MAILBOX)
        prepared_runs->mail[note->index].due = 0;
    if (note->kind != ATTND_COMMAND_PREPARED)
        return;
    struct attnd_prepared *prepared = &prepared_runs->prepared[note->index];
    if (prepared->serial != note->serial || !prepared->due)
        return;
    prepared->due = 0;
    prepared->mail->runs_due--;
}

void attnd_control_command_pump(struct attnd_prepared_runs *prepared_runs)
{
    if (!prepared_runs->scheduler->ready)
        return;
    for (uint32_t left = prepared_runs->controls_count;
         left && prepared_runs->free_sent != ATTND_NONE; left--) {
        struct attnd_control_command note = step_up(prepared_runs);
        enum readiness is = ready(prepared_runs, &note);
        if (is == NOT_YET) {
            line_up(prepared_runs, &note);
            continue;
        }
        not_due(prepared_runs, &note);
        if (is == READY)
            send(prepared_runs, &note);
    }
}

/* ---- answers ---- */

int attnd_control_command_retired(struct attnd_prepared_runs *prepared_runs,
                                  const struct attnd_retire *retire)
{
    uint32_t tag = retire->tag;
    if (tag >= ATTND_QUEUE_CONTROLS || prepared_runs->sent[tag].kind == 0 ||
        prepared_runs->sent[tag].kind != retire->kind)
        return -ATTND_E_PROTOCOL;
    const struct attnd_control_command note = prepared_runs->sent[tag];
    prepared_runs->sent[tag] =
        (struct attnd_control_command){.next_free = prepared_runs->free_sent};
    prepared_runs->free_sent = tag;
    prepared_runs->sent_count--;

    int code = retire->code < 0 ? retire->code : 0;
    if (note.kind == ATTND_COMMAND_MAILBOX) {
        prepared_runs->mail[note.index].notes--;
        attnd_prepared_mail_acked(prepared_runs, &prepared_runs->mail[note.index], (int)note.ending,
                                  code);
    } else if (note.kind == ATTND_COMMAND_PREPARED) {
        struct attnd_prepared *prepared = &prepared_runs->prepared[note.index];
        struct attnd_mail *mail = prepared->mail;
        prepared->notes--;
        mail->notes--;
        if (mail->state == ATTND_MAIL_CLOSING)
            attnd_prepared_mail_acked(prepared_runs, mail, 0, 0);
        else
            attnd_prepared_run_acked(prepared_runs, prepared, (int)note.ending, code);
    } else {
        if (note.kind == ATTND_COMMAND_HOLD)
            note.op->lane->session->holds--;
        attnd_prepared_step(prepared_runs, note.op, note.kind);
    }
    return 0;
}

void attnd_control_command_forget(struct attnd_prepared_runs *prepared_runs,
                                  void (*each)(struct attnd_prepared_runs *prepared_runs,
                                               const struct attnd_control_command *note))
{
    for (uint32_t i = 0; i < ATTND_QUEUE_PREPARED; i++) {
        prepared_runs->prepared[i].notes = 0;
        prepared_runs->prepared[i].due = 0;
    }
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++) {
        prepared_runs->mail[i].notes = prepared_runs->mail[i].runs_due = 0;
        prepared_runs->mail[i].due = 0;
    }
    /* What goes on now adds no notes: the worker is lost. */
    for (uint32_t tag = 0; tag < ATTND_QUEUE_CONTROLS; tag++) {
        const struct attnd_control_command *note = &prepared_runs->sent[tag];
        if (note->kind == ATTND_COMMAND_HOLD)
            note->op->lane->session->holds--;
        if (note->op)
            each(prepared_runs, note);
    }
    while (prepared_runs->controls_count) {
        struct attnd_control_command note = step_up(prepared_runs);
        if (note.op)
            each(prepared_runs, &note);
    }
    attnd_control_command_init(prepared_runs);
}
