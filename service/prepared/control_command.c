/*
 * control_command.c - what the worker is sent beside runs, and its acks.
 *
 * Control commands wait in one line. One names its object and not what it will say: that is looked
 * up when it is sent, so an object that changes twice meanwhile is sent once, and newest. The line
 * keeps its order with two exceptions. Where a memory is not mapped yet, others pass; one that is
 * passed says the newest, too, and mailboxes wait for all their runs. A PUBLISH passes what waits
 * for a run's tensors, and waits itself for the tables of its plan: a set may have brought them,
 * and the worker looks them up when it is published, for runs that it has had for long. And the
 * HOLDs of a session that has many out wait. The rings have room for ATTND_QUEUE_CONTROLS of them
 * at once, beside all runs, so neither crowds the other out.
 */
#include "service/prepared/internal.h"

#include <assert.h>

void attnd_control_command_init(struct attnd_prepared_runs *prepared_runs)
{
    prepared_runs->waiting_begin = prepared_runs->waiting_count = 0;
    prepared_runs->sent_count = prepared_runs->free_sent = 0;
    for (uint32_t tag = 0; tag < ATTND_QUEUE_CONTROLS; tag++)
        prepared_runs->sent[tag] = (struct attnd_control_command){
            .next_free = tag + 1 < ATTND_QUEUE_CONTROLS ? tag + 1 : ATTND_NONE};
}

/* ---- the line ---- */

static void line_up(struct attnd_prepared_runs *prepared_runs,
                    const struct attnd_control_command *control)
{
    if (prepared_runs->waiting_count ==
        ATTND_CONTROL_COMMANDS_MAX) { /* the worker has not answered for very long */
        prepared_runs->queue->broken = 1;
        return;
    }
    uint32_t end = (prepared_runs->waiting_begin + prepared_runs->waiting_count++) %
                   ATTND_CONTROL_COMMANDS_MAX;
    prepared_runs->waiting[end] = *control;
}

static struct attnd_control_command step_up(struct attnd_prepared_runs *prepared_runs)
{
    assert(prepared_runs->waiting_count);
    struct attnd_control_command control = prepared_runs->waiting[prepared_runs->waiting_begin];
    prepared_runs->waiting_begin = (prepared_runs->waiting_begin + 1) % ATTND_CONTROL_COMMANDS_MAX;
    prepared_runs->waiting_count--;
    return control;
}

void attnd_control_command_mail(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail)
{
    if (!attnd_mail_has_worker(prepared_runs, mail) || mail->due)
        return;
    mail->due = 1;
    line_up(prepared_runs,
            &(struct attnd_control_command){.kind = ATTND_COMMAND_MAILBOX,
                                            .index = attnd_mail_index(prepared_runs, mail)});
}

void attnd_control_command_prepared(struct attnd_prepared_runs *prepared_runs,
                                    struct attnd_prepared *prepared)
{
    if (!attnd_mail_has_worker(prepared_runs, prepared->mail) || prepared->due)
        return;
    prepared->due = 1;
    prepared->mail->runs_due++;
    line_up(prepared_runs,
            &(struct attnd_control_command){.kind = ATTND_COMMAND_PREPARED,
                                            .index = attnd_prepared_index(prepared_runs, prepared),
                                            .serial = prepared->serial});
}

void attnd_control_command_plan(struct attnd_prepared_runs *prepared_runs, uint32_t kind,
                                struct attnd_plan_change *change)
{
    assert(attnd_mail_has_worker(prepared_runs, change->plan->prepared_runs->mail));
    line_up(prepared_runs, &(struct attnd_control_command){.kind = kind, .change = change});
}

/* ---- sending ---- */

enum readiness { VOID, NOT_YET, READY };

static int mapped(const struct attnd_prepared_runs *prepared_runs,
                  const struct attnd_memory *memory)
{
    return memory ? attnd_maps_ready(prepared_runs->maps, memory->index) : 1;
}

/* Return: the first memory that the run names and that is not mapped, NULL if all are. */
static const struct attnd_memory *unmapped(const struct attnd_prepared_runs *prepared_runs,
                                           const struct attnd_prepared *prepared)
{
    const struct attnd_pool *pool = prepared->plan->attachment->pool;
    for (uint32_t i = 0; i < ATTND_RUN_PLACES; i++)
        if (mapped(prepared_runs, prepared->memories[i]) <= 0)
            return prepared->memories[i];
    for (uint32_t i = 0; i < ATTND_TABLES; i++)
        if (mapped(prepared_runs, prepared->plan->tables[i]) <= 0)
            return prepared->plan->tables[i];
    for (uint32_t i = 0; i < pool->memories_count; i++)
        if (mapped(prepared_runs, pool->memories[i]) <= 0)
            return pool->memories[i];
    return NULL;
}

int attnd_prepared_lacks(const struct attnd_prepared_runs *prepared_runs,
                         const struct attnd_prepared *prepared, struct attnd_fault *fault)
{
    const struct attnd_memory *memory = unmapped(prepared_runs, prepared);
    int code = mapped(prepared_runs, memory);
    if (code >= 0)
        return 0;
    *fault = memory->fault;
    return fault->code < 0 ? fault->code
                           : attnd_fault_set(fault, code, ATTND_F_MEMORY, 0, memory->index, 0);
}

static enum readiness ready_prepared(struct attnd_prepared_runs *prepared_runs,
                                     const struct attnd_control_command *control)
{
    struct attnd_prepared *prepared = &prepared_runs->prepared[control->index];
    struct attnd_run *run = attnd_prepared_run(prepared_runs, prepared);

    if (prepared->serial != control->serial || !prepared->mail)
        return VOID;
    if (prepared->mail->state == ATTND_MAIL_CLOSING)
        return VOID;
    if (prepared->ending || run->code)
        return READY;
    if (attnd_prepared_changing(prepared->plan)) /* the worker looks at the plan */
        return NOT_YET;
    int rc = mapped(prepared_runs, unmapped(prepared_runs, prepared));
    if (rc < 0)
        run->code = (uint32_t)-rc;
    return rc ? READY : NOT_YET;
}

static enum readiness ready_mail(const struct attnd_prepared_runs *prepared_runs,
                                 const struct attnd_control_command *control)
{
    const struct attnd_mail *mail = &prepared_runs->mail[control->index];
    if (mail->state == ATTND_MAIL_CLOSING)
        return READY;
    if (mail->runs_due)
        return NOT_YET;
    return mapped(prepared_runs, mail->memory) ? READY
                                               : NOT_YET; /* if it never is, the worker says so */
}

static enum readiness ready_hold(const struct attnd_control_command *control)
{
    return control->change->client->holds < ATTND_HOLDS_SESSION_MAX ? READY : NOT_YET;
}

/* A table that never will be mapped is the worker's to refuse. */
static enum readiness ready_publish(const struct attnd_prepared_runs *prepared_runs,
                                    const struct attnd_control_command *control)
{
    if (prepared_runs->maps->not_mapped == 0)
        return READY;
    for (uint32_t i = 0; i < ATTND_TABLES; i++)
        if (mapped(prepared_runs, control->change->plan->tables[i]) == 0)
            return NOT_YET;
    return READY;
}

static enum readiness ready(struct attnd_prepared_runs *prepared_runs,
                            const struct attnd_control_command *control)
{
    if (control->kind == ATTND_COMMAND_PREPARED)
        return ready_prepared(prepared_runs, control);
    if (control->kind == ATTND_COMMAND_HOLD)
        return ready_hold(control);
    if (control->kind == ATTND_COMMAND_PUBLISH)
        return ready_publish(prepared_runs, control);
    return control->kind == ATTND_COMMAND_MAILBOX ? ready_mail(prepared_runs, control) : READY;
}

/* Looks up what the command says of its object, and counts it as sent. */
static void fill(struct attnd_prepared_runs *prepared_runs, struct attnd_control_command *control,
                 struct attnd_command *command)
{
    if (control->kind == ATTND_COMMAND_PREPARED) {
        struct attnd_prepared *prepared = &prepared_runs->prepared[control->index];
        struct attnd_run *run = attnd_prepared_run(prepared_runs, prepared);
        command->run = ATTND_QUEUE_RUNS + control->index;
        if (!prepared->ending) { /* a PUBLISH may have overtaken what waited for its memory */
            run->generation = prepared->plan->generation;
            run->items = attnd_planobj_ready(prepared->plan) ? prepared->plan->tile_items : 0;
        }
        command->body = *run;
        if (!prepared->ending)
            attnd_planobj_command(prepared->plan, run, prepared->plan->advance_version, command);
        control->ending = prepared->ending;
        prepared->unacked++;
        prepared->mail->unacked++;
        return;
    }
    if (control->kind == ATTND_COMMAND_MAILBOX) {
        struct attnd_mail *mail = &prepared_runs->mail[control->index];
        command->run = control->index;
        control->ending = mail->state == ATTND_MAIL_CLOSING;
        mail->unacked++;
        return;
    }
    if (control->kind == ATTND_COMMAND_HOLD)
        control->change->client->holds++;
    const struct attnd_plan_object *plan = control->change->plan;
    command->set_version = plan->set_version;
    command->advance_version = plan->advance_version;
    command->page_size = plan->attachment->pool->shape.page_size;
    command->pages = plan->attachment->pool->shape.pages;
    command->body.plan_offset_bytes = plan->heap_offset_bytes;
    command->body.generation = plan->generation;
    command->body.items = attnd_planobj_ready(plan) ? plan->tile_items : 0;
}

static void send(struct attnd_prepared_runs *prepared_runs, struct attnd_control_command *control)
{
    uint32_t tag = prepared_runs->free_sent;
    struct attnd_command command = {.kind = control->kind, .tag = tag};
    fill(prepared_runs, control, &command);
    prepared_runs->free_sent = prepared_runs->sent[tag].next_free;
    prepared_runs->sent[tag] = *control;
    prepared_runs->sent_count++;
    (void)attnd_queue_push(prepared_runs->queue, &command);
}

/* It does not wait any more. */
static void not_due(struct attnd_prepared_runs *prepared_runs,
                    const struct attnd_control_command *control)
{
    if (control->kind == ATTND_COMMAND_MAILBOX)
        prepared_runs->mail[control->index].due = 0;
    if (control->kind != ATTND_COMMAND_PREPARED)
        return;
    struct attnd_prepared *prepared = &prepared_runs->prepared[control->index];
    if (prepared->serial != control->serial || !prepared->due)
        return;
    prepared->due = 0;
    prepared->mail->runs_due--;
}

void attnd_control_command_pump(struct attnd_prepared_runs *prepared_runs)
{
    if (!prepared_runs->queue->accepting)
        return;
    for (uint32_t left = prepared_runs->waiting_count;
         left && prepared_runs->free_sent != ATTND_NONE; left--) {
        struct attnd_control_command control = step_up(prepared_runs);
        enum readiness is = ready(prepared_runs, &control);
        if (is == NOT_YET) {
            line_up(prepared_runs, &control);
            continue;
        }
        not_due(prepared_runs, &control);
        if (is == READY)
            send(prepared_runs, &control);
    }
}

/* ---- acks ---- */

int attnd_control_command_retired(struct attnd_prepared_runs *prepared_runs,
                                  const struct attnd_retire *retire)
{
    uint32_t tag = retire->tag;
    if (tag >= ATTND_QUEUE_CONTROLS || prepared_runs->sent[tag].kind == 0 ||
        prepared_runs->sent[tag].kind != retire->kind)
        return -ATTND_E_PROTOCOL;
    const struct attnd_control_command control = prepared_runs->sent[tag];
    prepared_runs->sent[tag] =
        (struct attnd_control_command){.next_free = prepared_runs->free_sent};
    prepared_runs->free_sent = tag;
    prepared_runs->sent_count--;

    int code = retire->code < 0 ? retire->code : 0;
    if (control.kind == ATTND_COMMAND_MAILBOX) {
        prepared_runs->mail[control.index].unacked--;
        attnd_prepared_mail_acked(prepared_runs, &prepared_runs->mail[control.index],
                                  (int)control.ending, code);
    } else if (control.kind == ATTND_COMMAND_PREPARED) {
        struct attnd_prepared *prepared = &prepared_runs->prepared[control.index];
        struct attnd_mail *mail = prepared->mail;
        prepared->unacked--;
        mail->unacked--;
        if (mail->state == ATTND_MAIL_CLOSING)
            attnd_prepared_mail_acked(prepared_runs, mail, 0, 0);
        else
            attnd_prepared_run_acked(prepared_runs, prepared, (int)control.ending, code);
    } else {
        if (control.kind == ATTND_COMMAND_HOLD)
            control.change->client->holds--;
        prepared_runs->events.acked(control.change, control.kind);
    }
    return 0;
}

void attnd_control_command_forget(struct attnd_prepared_runs *prepared_runs)
{
    for (uint32_t i = 0; i < ATTND_QUEUE_PREPARED; i++) {
        prepared_runs->prepared[i].unacked = 0;
        prepared_runs->prepared[i].due = 0;
    }
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++) {
        prepared_runs->mail[i].unacked = prepared_runs->mail[i].runs_due = 0;
        prepared_runs->mail[i].due = 0;
    }
    for (uint32_t tag = 0; tag < ATTND_QUEUE_CONTROLS; tag++) {
        const struct attnd_control_command *control = &prepared_runs->sent[tag];
        if (control->kind == ATTND_COMMAND_HOLD)
            control->change->client->holds--;
        if (control->change)
            prepared_runs->events.acked(control->change, control->kind);
    }
    while (prepared_runs->waiting_count) {
        struct attnd_control_command control = step_up(prepared_runs);
        if (control.change)
            prepared_runs->events.acked(control.change, control.kind);
    }
    attnd_control_command_init(prepared_runs);
}
