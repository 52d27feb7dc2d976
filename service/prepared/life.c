/*
 * life.c - mailboxes and prepared runs, from the call that makes them to their end.
 *
 * To make one, the daemon checks it, fills its slot of the queue segment, and sends the worker a
 * control command; the ack answers the engine, and from then on a launch finds the run. To end one
 * takes the reverse, and the worker's ack matters even more: what a run reads and writes is let go
 * only when nothing of it can be in flight. A dead session's runs are not ended one by one. The
 * worker is sent one command, to look at the mailbox no more, and its ack frees them all.
 *
 * Where the engine executes its launched runs itself the worker has no part in any of this, and
 * each step is done as if its ack had come at once.
 */
#include "service/prepared/internal.h"

#include "ipc/shm.h"
#include "schemas/atomics.h"
#include "schemas/engine.h"

#include <stdlib.h>

int attnd_prepared_new(struct attnd_service *service, const struct attnd_maps *maps,
                       const struct attnd_prepared_events *events, struct attnd_prepared_runs **out)
{
    struct attnd_prepared_runs *prepared_runs = calloc(1, sizeof(*prepared_runs));
    if (!prepared_runs)
        return -ATTND_E_NO_MEMORY;
    prepared_runs->service = service;
    prepared_runs->queue = service->queue;
    prepared_runs->maps = maps;
    prepared_runs->events = *events;
    prepared_runs->lost = 1;
    for (uint32_t i = 0; i < ATTND_QUEUE_PREPARED; i++)
        prepared_runs->prepared[i].next = i + 1 < ATTND_QUEUE_PREPARED ? i + 1 : ATTND_NONE;
    prepared_runs->free_last = ATTND_QUEUE_PREPARED - 1;
    attnd_control_command_init(prepared_runs);
    *out = prepared_runs;
    return 0;
}

void attnd_prepared_free(struct attnd_prepared_runs *prepared_runs)
{
    if (prepared_runs)
        attnd_heap_destroy(&prepared_runs->scratch);
    free(prepared_runs);
}

static struct attnd_prepared_runs *prepared_of(const struct attnd_client *client)
{
    return client->service->prepared_runs;
}

/* ---- making ---- */

static struct attnd_mail *vacant_mail(struct attnd_prepared_runs *prepared_runs)
{
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++)
        if (prepared_runs->mail[i].state == ATTND_MAIL_FREE)
            return &prepared_runs->mail[i];
    return NULL;
}

static int take_memory(struct attnd_client *client, uint32_t kind, struct attnd_mail *mail,
                       struct attnd_fault *fault)
{
    int rc = attnd_memory_make(client, kind, sizeof(struct attnd_mailbox), &mail->memory, fault);
    if (rc < 0)
        return rc;
    rc = attnd_memory_bind(client, mail->memory, &mail->handle, fault);
    if (rc < 0)
        attnd_memory_unref(client->service, mail->memory);
    else
        attnd_memory_ref(mail->memory); /* the handle has the first reference */
    return rc;
}

/* The page that the engine's kernels count in. What stands there is the engine's word about itself,
 * and used for nothing but to be shown. */
static int take_account(struct attnd_client *client, struct attnd_mail *mail,
                        struct attnd_fault *fault)
{
    int rc = attnd_quota_charge(client, ATTND_PAGE_BYTES, fault);
    if (rc < 0)
        return rc;
    rc = attnd_shm_create("attnd-account", sizeof(struct attnd_engine_account), &mail->account,
                          fault);
    if (rc == 0)
        rc = attnd_memory_check_fd(mail->account.fd, fault);
    if (rc == 0 && attnd_shm_seal(mail->account.fd, ATTND_SEAL_POOL) < 0)
        rc = attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_SEALS, 0, 0, 0);
    if (rc < 0) {
        attnd_shm_unmap(&mail->account);
        attnd_quota_refund(client->service, attnd_quota_payer(client), ATTND_PAGE_BYTES);
    }
    return rc;
}

static void give_account(const struct attnd_client *client, struct attnd_mail *mail)
{
    if (!mail->account.address)
        return;
    attnd_shm_unmap(&mail->account);
    attnd_quota_refund(client->service, attnd_quota_payer(client), ATTND_PAGE_BYTES);
}

/* Answers the call that waits, if one does: the session may be dying. It may be ended by this. */
static void answer(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail,
                   uint32_t call, uint32_t run, const struct attnd_fault *fault)
{
    const struct attnd_prepared_answer is = {.call = call, .run = run, .fault = *fault};
    if (!mail->calling)
        return;
    mail->calling = 0;
    prepared_runs->events.answered(mail, &is);
}

/* For runs that the engine executes: nobody is asked. */
static void open_at_once(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail)
{
    static const struct attnd_fault none;
    mail->state = ATTND_MAIL_OPEN;
    prepared_runs->queue->mailboxes[attnd_mail_index(prepared_runs, mail)] =
        (struct attnd_mailbox_slot){.memory = ATTND_NONE, .session = mail->client->id};
    answer(prepared_runs, mail, ATTND_PREPARED_OPENED, 0, &none);
}

int attnd_prepared_open(struct attnd_client *client, uint64_t id, uint32_t wish, int counts,
                        struct attnd_fault *fault)
{
    struct attnd_prepared_runs *prepared_runs = prepared_of(client);
    uint32_t kind = prepared_runs->queue->info.mailbox_kind;
    struct attnd_mail *mail = vacant_mail(prepared_runs);

    if (client->mail)
        return attnd_fault_set(fault, -ATTND_E_BUSY, ATTND_F_MAILBOX, 0, client->mail->handle, 0);
    if (!kind)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MAILBOX, 0, 0, 0);
    if (!mail)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_MAILBOX, 0, ATTND_MAILBOXES_MAX,
                               ATTND_MAILBOXES_MAX);
    struct attnd_mail opened = {
        .client = client, .call_id = id, .calling = 1, .account = {.fd = -1}};
    int rc = attnd_executor_choose(client->service, wish, &opened, fault);
    if (rc == 0 && !opened.by_engine)
        rc = take_memory(client, kind, &opened, fault);
    if (rc == 0 && opened.by_engine && counts)
        rc = take_account(client, &opened, fault);
    if (rc < 0)
        return rc;
    *mail = opened;
    client->mail = mail;
    if (mail->by_engine) {
        open_at_once(prepared_runs, mail);
        return 1;
    }
    mail->state = ATTND_MAIL_OPENING;
    prepared_runs->queue->mailboxes[attnd_mail_index(prepared_runs, mail)] =
        (struct attnd_mailbox_slot){
            .memory = mail->memory->index, .session = client->id, .fresh = 1};
    attnd_control_command_mail(prepared_runs, mail);
    attnd_control_command_pump(prepared_runs);
    return 1;
}

/* Checks of both calls about runs. */
static int check_mail(const struct attnd_client *client, struct attnd_fault *fault)
{
    if (!client->mail || client->mail->state != ATTND_MAIL_OPEN)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MAILBOX, 0, 0, 0);
    if (client->mail->calling)
        return attnd_fault_set(fault, -ATTND_E_BUSY, ATTND_F_MAILBOX, 0, client->mail->handle, 0);
    return 0;
}

static int check_prepare(const struct attnd_client *client, const struct attnd_plan_object *object,
                         uint32_t plan, uint32_t lane, uint32_t layer, struct attnd_fault *fault)
{
    if (!object)
        return attnd_fault_set(fault, -ATTND_E_UNKNOWN, ATTND_F_PLAN, 0, plan, 0);
    if (lane >= ATTND_LANES_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_LANE, 0, lane, ATTND_LANES_MAX - 1);
    uint32_t layers = object->attachment->pool->shape.layers;
    if (layer >= layers)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_LAYER, 0, layer, layers - 1);
    if (!attnd_planobj_ready(object))
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_PLAN, 0, plan, 0);
    if (client->mail->prepared >= ATTND_PREPARED_SESSION_MAX)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_PREPARED, 0,
                               ATTND_PREPARED_SESSION_MAX + 1, ATTND_PREPARED_SESSION_MAX);
    if (prepared_of(client)->free_prepared == ATTND_NONE)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_PREPARED, 0,
                               ATTND_QUEUE_PREPARED + 1, ATTND_QUEUE_PREPARED);
    return 0;
}

/* Neither waits for anything: a memory that the worker has not mapped yet delays the control
 * command. */
int attnd_prepared_add(struct attnd_client *client, uint64_t id, uint32_t plan, uint32_t lane,
                       const struct attnd_sqe_run *wish, struct attnd_fault *fault)
{
    struct attnd_prepared_runs *prepared_runs = prepared_of(client);
    struct attnd_plan_object *object = attnd_client_plan(client, plan);
    int rc = check_mail(client, fault);
    if (rc == 0)
        rc = check_prepare(client, object, plan, lane, wish->layer, fault);
    if (rc < 0)
        return rc;

    struct attnd_prepared *prepared = &prepared_runs->prepared[prepared_runs->free_prepared];
    uint32_t next = prepared->next, serial = prepared->serial;
    *prepared = (struct attnd_prepared){
        .mail = client->mail, .plan = object, .wish = *wish, .lane = lane, .serial = serial + 1};
    rc = attnd_prepared_join(prepared_runs, prepared, fault);
    if (rc < 0) {
        *prepared = (struct attnd_prepared){.next = next, .serial = serial + 1};
        return rc;
    }
    prepared_runs->free_prepared = next;
    prepared_runs->prepared_count++;
    client->mail->prepared++;
    prepared->called = 1;
    client->mail->calling = 1;
    client->mail->call_id = id;
    attnd_control_command_prepared(prepared_runs, prepared);
    attnd_control_command_pump(prepared_runs);
    if (prepared->mail->by_engine)
        attnd_prepared_run_acked(prepared_runs, prepared, 0, 0);
    return 1;
}

/* ---- ending ---- */

/* Nothing of it is in flight, nor is any control command about it. */
static void release(struct attnd_prepared_runs *prepared_runs, struct attnd_prepared *prepared)
{
    uint32_t serial = prepared->serial;
    prepared->mail->prepared--;
    prepared->mail->runs_due -= prepared->due;
    attnd_prepared_leave(prepared_runs, prepared);
    attnd_places_release(prepared_runs->service, prepared->memories);
    *attnd_prepared_run(prepared_runs, prepared) = (struct attnd_run){.mailbox = ATTND_NONE};
    *prepared = (struct attnd_prepared){.next = ATTND_NONE, .serial = serial + 1};
    const uint32_t index = attnd_prepared_index(prepared_runs, prepared);
    if (prepared_runs->free_prepared == ATTND_NONE)
        prepared_runs->free_prepared = index;
    else
        prepared_runs->prepared[prepared_runs->free_last].next = index;
    prepared_runs->free_last = index;
    prepared_runs->prepared_count--;
}

static void end_prepared(struct attnd_prepared_runs *prepared_runs, struct attnd_prepared *prepared)
{
    prepared->ending = 1;
    *attnd_prepared_run(prepared_runs, prepared) = (struct attnd_run){.mailbox = ATTND_NONE};
    attnd_control_command_prepared(prepared_runs, prepared);
    attnd_control_command_pump(prepared_runs);
}

void attnd_prepared_run_acked(struct attnd_prepared_runs *prepared_runs,
                              struct attnd_prepared *prepared, int emptied, int code)
{
    static const struct attnd_fault none;
    struct attnd_mail *mail = prepared->mail;
    struct attnd_fault fault = {.code = code};
    uint32_t run = attnd_prepared_number(prepared_runs, prepared);
    int unprepared = 0, made = 0;

    prepared->ended |= (uint8_t)(emptied != 0);
    if (prepared->called && !prepared->ending) {
        prepared->called = 0;
        made = 1;
    }
    /* The worker knows the run all the same where a memory of it has failed since. */
    if (made && code == 0 && attnd_mail_has_worker(prepared_runs, mail))
        code = attnd_prepared_lacks(prepared_runs, prepared, &fault);
    if (made && code < 0)
        end_prepared(prepared_runs, prepared);
    if (prepared->ended && prepared->unacked == 0) {
        unprepared = prepared->called;
        release(prepared_runs, prepared);
    }
    if (made)
        answer(prepared_runs, mail, ATTND_PREPARED_ADDED, run, &fault);
    else if (unprepared)
        answer(prepared_runs, mail, ATTND_PREPARED_REMOVED, run, &none);
}

/* Return: NULL: the session has no such run, or it is ending. */
static struct attnd_prepared *find_prepared(const struct attnd_client *client, uint32_t number)
{
    struct attnd_prepared_runs *prepared_runs = prepared_of(client);
    const uint32_t index = number % ATTND_DOORBELL_SLOTS - ATTND_QUEUE_RUNS;
    if (index >= ATTND_QUEUE_PREPARED)
        return NULL;
    struct attnd_prepared *prepared = &prepared_runs->prepared[index];
    int is = prepared->mail == client->mail && !prepared->ending &&
             attnd_prepared_number(prepared_runs, prepared) == number;
    return is ? prepared : NULL;
}

int attnd_prepared_remove(struct attnd_client *client, uint64_t id, uint32_t number,
                          struct attnd_fault *fault)
{
    struct attnd_prepared_runs *prepared_runs = prepared_of(client);
    struct attnd_prepared *prepared = find_prepared(client, number);
    int rc = check_mail(client, fault);
    if (rc < 0)
        return rc;
    if (!prepared)
        return attnd_fault_set(fault, -ATTND_E_UNKNOWN, ATTND_F_PREPARED, 0, number, 0);
    client->mail->calling = 1;
    client->mail->call_id = id;
    prepared->called = 1;
    end_prepared(prepared_runs, prepared);
    if (!attnd_mail_has_worker(prepared_runs, prepared->mail))
        attnd_prepared_run_acked(prepared_runs, prepared, 1, 0);
    return 1;
}

/* The worker let go of a dead session's mailbox and every control command about its runs is acked.
 */
static void let_go(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail)
{
    struct attnd_client *client = mail->client;
    for (uint32_t i = 0; i < ATTND_QUEUE_PREPARED && mail->prepared; i++)
        if (prepared_runs->prepared[i].mail == mail)
            release(prepared_runs, &prepared_runs->prepared[i]);
    if (mail->memory)
        attnd_memory_unref(client->service, mail->memory);
    give_account(client, mail);
    *mail = (struct attnd_mail){.state = ATTND_MAIL_FREE};
    client->mail = NULL;
}

void attnd_prepared_close(struct attnd_client *client)
{
    struct attnd_prepared_runs *prepared_runs = prepared_of(client);
    struct attnd_mail *mail = client->mail;
    if (!mail)
        return;
    mail->state = ATTND_MAIL_CLOSING;
    mail->calling = 0;
    prepared_runs->queue->mailboxes[attnd_mail_index(prepared_runs, mail)].memory = ATTND_NONE;
    for (uint32_t i = 0; i < ATTND_QUEUE_PREPARED; i++) /* nobody waits for what is in flight */
        if (prepared_runs->prepared[i].mail == mail)
            attnd_poke32(&attnd_prepared_run(prepared_runs, &prepared_runs->prepared[i])->cancel,
                         1);
    if (!attnd_mail_has_worker(prepared_runs, mail)) {
        let_go(prepared_runs, mail);
        return;
    }
    attnd_control_command_mail(prepared_runs, mail);
    attnd_control_command_pump(prepared_runs);
}

/* The worker does not watch it, so the session has none and may ask for another. */
static void answer_open(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail,
                        int code)
{
    const struct attnd_fault fault = {.code = code};
    answer(prepared_runs, mail, ATTND_PREPARED_OPENED, 0, &fault);
    if (mail->state != ATTND_MAIL_OPENING) /* open, or the answer has ended the session */
        return;
    prepared_runs->queue->mailboxes[attnd_mail_index(prepared_runs, mail)].memory = ATTND_NONE;
    attnd_memory_unbind(mail->client, mail->handle);
    let_go(prepared_runs, mail);
}

void attnd_prepared_mail_acked(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail,
                               int stopped, int code)
{
    mail->stopped |= stopped;
    if (mail->state == ATTND_MAIL_CLOSING) {
        struct attnd_client *client = mail->client;
        if (mail->stopped && mail->unacked == 0) {
            let_go(prepared_runs, mail);
            prepared_runs->events.closed(client);
        }
        return;
    }
    struct attnd_mailbox_slot *slot =
        &prepared_runs->queue->mailboxes[attnd_mail_index(prepared_runs, mail)];
    if (code == 0)
        slot->fresh = 0;
    else
        attnd_log(ATTND_LOG_WARNING, "session %u: its mailbox cannot be watched: %s",
                  mail->client->id, attnd_error_name(code));
    int opening = mail->state == ATTND_MAIL_OPENING;
    if (code == 0 && opening)
        mail->state = ATTND_MAIL_OPEN;
    if (opening && mail->calling)
        answer_open(prepared_runs, mail, code);
    else if (code < 0) /* an engine that waits for an answer in it sees its session end */
        prepared_runs->events.unwatched(mail->client, "its mailbox cannot be watched");
}

/* Of all lanes. The engine may write anything there, at any time. */
static void count_account(const struct attnd_engine_account *account,
                          struct attnd_prepared_status *status)
{
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++) {
        const struct attnd_engine_sums *sums = &account->lane[i];
        const uint32_t errors = attnd_peek32(&sums->errors);
        status->launches += attnd_peek64(&sums->runs);
        status->busy_ns += attnd_peek64(&sums->busy_ns);
        status->errors += errors;
        if (errors) {
            status->error_code = attnd_peek32(&sums->error_code);
            status->error_lane = i;
        }
    }
}

int attnd_prepared_status(const struct attnd_client *client, struct attnd_prepared_status *status)
{
    if (!client->mail)
        return 0;
    const struct attnd_prepared_runs *prepared_runs = prepared_of(client);
    const struct attnd_mailbox_slot *slot =
        &prepared_runs->queue->mailboxes[attnd_mail_index(prepared_runs, client->mail)];
    *status = (struct attnd_prepared_status){.by_engine = client->mail->by_engine,
                                             .why = client->mail->why,
                                             .prepared = client->mail->prepared,
                                             .launches = attnd_peek64(&slot->runs),
                                             .busy_ns = attnd_peek64(&slot->busy_ns),
                                             .errors = attnd_peek32(&slot->errors),
                                             .error_code = attnd_peek32(&slot->error_code),
                                             .error_lane = attnd_peek32(&slot->error_lane)};
    if (client->mail->account.address)
        count_account(client->mail->account.address, status);
    return 1;
}
