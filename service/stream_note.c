/*
 * stream_note.c - what the worker is told beside runs, one note a command, and its answers.
 *
 * Notes wait in one line. A note says what it is about, not what it will say: that is looked up
 * when it is sent, so an object that changes twice while its note waits is told of once, and
 * newest. The line is kept except where something must wait for the worker to map memory; a note
 * that is passed over meanwhile says the newest too, and mailboxes wait for all their runs; and
 * except for the HOLDs of a session that has many out. Rings have room for ATTND_QUEUE_NOTES of
 * them at once, which is what runs leave, so neither crowds the other out.
 */
#include "service/stream.h"

#include <assert.h>

void attnd_note_init(struct attnd_stream *stream)
{
    stream->notes_begin = stream->notes_count = 0;
    stream->sent_count = stream->free_sent = 0;
    for (uint32_t tag = 0; tag < ATTND_QUEUE_NOTES; tag++)
        stream->sent[tag] =
            (struct attnd_note){.next_free = tag + 1 < ATTND_QUEUE_NOTES ? tag + 1 : ATTND_NONE};
}

/* ---- the line ---- */

static void line_up(struct attnd_stream *stream, const struct attnd_note *note)
{
    if (stream->notes_count == ATTND_NOTES_MAX) { /* the worker has not answered for very long */
        stream->scheduler->queue_broken = 1;
        return;
    }
    uint32_t end = (stream->notes_begin + stream->notes_count++) % ATTND_NOTES_MAX;
    stream->notes[end] = *note;
}

static struct attnd_note step_up(struct attnd_stream *stream)
{
    assert(stream->notes_count);
    struct attnd_note note = stream->notes[stream->notes_begin];
    stream->notes_begin = (stream->notes_begin + 1) % ATTND_NOTES_MAX;
    stream->notes_count--;
    return note;
}

void attnd_note_mail(struct attnd_stream *stream, struct attnd_mail *mail)
{
    if (stream->lost || mail->due)
        return;
    mail->due = 1;
    line_up(stream, &(struct attnd_note){.kind = ATTND_COMMAND_MAILBOX,
                                         .index = attnd_mail_index(stream, mail)});
}

void attnd_note_prepared(struct attnd_stream *stream, struct attnd_prepared *prepared)
{
    if (stream->lost || prepared->due)
        return;
    prepared->due = 1;
    prepared->mail->runs_due++;
    line_up(stream, &(struct attnd_note){.kind = ATTND_COMMAND_PREPARED,
                                         .index = attnd_prepared_index(stream, prepared),
                                         .serial = prepared->serial});
}

void attnd_note_plan(struct attnd_stream *stream, uint32_t kind, struct attnd_sched_op *op)
{
    assert(!stream->lost);
    line_up(stream, &(struct attnd_note){.kind = kind, .op = op});
}

/* ---- sending ---- */

enum readiness { VOID, NOT_YET, READY };

static int mapped(const struct attnd_stream *stream, const struct attnd_memory *memory)
{
    return memory ? attnd_maps_ready(stream->scheduler->maps, memory->index) : 1;
}

/* Return: 1 all that the run names is mapped; 0 not yet; -ATTND_E_* it never will be. */
static int run_mapped(const struct attnd_stream *stream, const struct attnd_prepared *prepared)
{
    const struct attnd_pool *pool = prepared->plan->attachment->pool;
    int rc = 1;
    for (uint32_t i = 0; i < ATTND_RUN_PLACES && rc > 0; i++)
        rc = mapped(stream, prepared->memories[i]);
    for (uint32_t i = 0; i < pool->memories_count && rc > 0; i++)
        rc = mapped(stream, pool->memories[i]);
    return rc;
}

static enum readiness ready_prepared(struct attnd_stream *stream, const struct attnd_note *note)
{
    struct attnd_prepared *prepared = &stream->prepared[note->index];
    struct attnd_run *run = attnd_prepared_run(stream, prepared);

    if (prepared->serial != note->serial || !prepared->mail)
        return VOID;
    if (prepared->mail->state == ATTND_MAIL_CLOSING)
        return VOID;
    if (prepared->ending || run->code)
        return READY;
    if (attnd_stream_changing(prepared->plan)) /* the worker looks at the plan */
        return NOT_YET;
    int rc = run_mapped(stream, prepared);
    if (rc < 0)
        run->code = (uint32_t)-rc;
    return rc ? READY : NOT_YET;
}

static enum readiness ready_mail(const struct attnd_stream *stream, const struct attnd_note *note)
{
    const struct attnd_mail *mail = &stream->mail[note->index];
    if (mail->state == ATTND_MAIL_CLOSING)
        return READY;
    if (mail->runs_due)
        return NOT_YET;
    return mapped(stream, mail->memory) ? READY : NOT_YET; /* if it never is, the worker says so */
}

static enum readiness ready_hold(const struct attnd_note *note)
{
    return note->op->lane->session->holds < ATTND_HOLDS_SESSION_MAX ? READY : NOT_YET;
}

static enum readiness ready(struct attnd_stream *stream, const struct attnd_note *note)
{
    if (note->kind == ATTND_COMMAND_PREPARED)
        return ready_prepared(stream, note);
    if (note->kind == ATTND_COMMAND_HOLD)
        return ready_hold(note);
    return note->kind == ATTND_COMMAND_MAILBOX ? ready_mail(stream, note) : READY;
}

/* Takes the object's word for what the note says, and counts it as told. */
static void fill(struct attnd_stream *stream, struct attnd_note *note,
                 struct attnd_command *command)
{
    if (note->kind == ATTND_COMMAND_PREPARED) {
        struct attnd_prepared *prepared = &stream->prepared[note->index];
        struct attnd_run *run = attnd_prepared_run(stream, prepared);
        command->run = ATTND_QUEUE_RUNS + note->index;
        if (!prepared->ending) { /* a SHOW may have overtaken what waited for its memory */
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
        struct attnd_mail *mail = &stream->mail[note->index];
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

static void send(struct attnd_stream *stream, struct attnd_note *note)
{
    struct attnd_scheduler *scheduler = stream->scheduler;
    uint32_t tag = stream->free_sent;
    struct attnd_command command = {.kind = note->kind, .tag = tag};
    fill(stream, note, &command);
    stream->free_sent = stream->sent[tag].next_free;
    stream->sent[tag] = *note;
    stream->sent_count++;
    if (attnd_queue_push(scheduler->queue, &command) < 0)
        scheduler->queue_broken = 1; /* it has room for every note: never full */
    scheduler->commands_pushed = 1;
}

/* It does not wait any more. */
static void not_due(struct attnd_stream *stream, const struct attnd_note *note)
{
    if (note->kind == ATTND_COMMAND_MAILBOX)
        stream->mail[note->index].due = 0;
    if (note->kind != ATTND_COMMAND_PREPARED)
        return;
    struct attnd_prepared *prepared = &stream->prepared[note->index];
    if (prepared->serial != note->serial || !prepared->due)
        return;
    prepared->due = 0;
    prepared->mail->runs_due--;
}

void attnd_note_pump(struct attnd_stream *stream)
{
    if (!stream->scheduler->ready)
        return;
    for (uint32_t left = stream->notes_count; left && stream->free_sent != ATTND_NONE; left--) {
        struct attnd_note note = step_up(stream);
        enum readiness is = ready(stream, &note);
        if (is == NOT_YET) {
            line_up(stream, &note);
            continue;
        }
        not_due(stream, &note);
        if (is == READY)
            send(stream, &note);
    }
}

/* ---- answers ---- */

int attnd_note_retired(struct attnd_stream *stream, const struct attnd_retire *retire)
{
    uint32_t tag = retire->tag;
    if (tag >= ATTND_QUEUE_NOTES || stream->sent[tag].kind == 0 ||
        stream->sent[tag].kind != retire->kind)
        return -ATTND_E_PROTOCOL;
    const struct attnd_note note = stream->sent[tag];
    stream->sent[tag] = (struct attnd_note){.next_free = stream->free_sent};
    stream->free_sent = tag;
    stream->sent_count--;

    int code = retire->code < 0 ? retire->code : 0;
    if (note.kind == ATTND_COMMAND_MAILBOX) {
        stream->mail[note.index].notes--;
        attnd_stream_mail_told(stream, &stream->mail[note.index], (int)note.ending, code);
    } else if (note.kind == ATTND_COMMAND_PREPARED) {
        struct attnd_prepared *prepared = &stream->prepared[note.index];
        struct attnd_mail *mail = prepared->mail;
        prepared->notes--;
        mail->notes--;
        if (mail->state == ATTND_MAIL_CLOSING)
            attnd_stream_mail_told(stream, mail, 0, 0);
        else
            attnd_stream_prepared_told(stream, prepared, (int)note.ending, code);
    } else {
        if (note.kind == ATTND_COMMAND_HOLD)
            note.op->lane->session->holds--;
        attnd_stream_step(stream, note.op, note.kind);
    }
    return 0;
}

void attnd_note_forget(struct attnd_stream *stream,
                       void (*each)(struct attnd_stream *stream, const struct attnd_note *note))
{
    for (uint32_t i = 0; i < ATTND_QUEUE_PREPARED; i++) {
        stream->prepared[i].notes = 0;
        stream->prepared[i].due = 0;
    }
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++) {
        stream->mail[i].notes = stream->mail[i].runs_due = 0;
        stream->mail[i].due = 0;
    }
    /* What goes on now adds no notes: the worker is lost. */
    for (uint32_t tag = 0; tag < ATTND_QUEUE_NOTES; tag++) {
        const struct attnd_note *note = &stream->sent[tag];
        if (note->kind == ATTND_COMMAND_HOLD)
            note->op->lane->session->holds--;
        if (note->op)
            each(stream, note);
    }
    while (stream->notes_count) {
        struct attnd_note note = step_up(stream);
        if (note.op)
            each(stream, &note);
    }
    attnd_note_init(stream);
}
