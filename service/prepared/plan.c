/*
 * plan.c - what prepared runs are while their plan is set and advanced.
 *
 * A set changes everything that a run of the plan reads, so the worker is sent a HOLD of the plan
 * first and a PUBLISH when the set is done: launched runs wait in between, and none is refused. A
 * set that fails has changed nothing. Scratch of the new batch is taken before anything is; extents
 * are decided again at each set. A run whose tensors do not suit it any more stays prepared, and
 * its launches are answered with the reason until a later set suits it.
 *
 * An advance writes lengths that nobody reads, and only then are they published. Which lengths the
 * runs in flight still read is not known here, so those published since the last HOLD count as
 * read. When none is left to write to, a HOLD, which waits for all of them, makes them free again:
 * once every ATTND_GENERATIONS - 1 advances.
 *
 * Where the worker has no part in a plan's runs nothing is held and nothing is published: what the
 * engine's kernels read is a copy (objects/image.c).
 *
 * Scratch of prepared runs is kept for as long as they are, so nobody can wait for it. A session
 * that took all would shut others out, and is refused what is beyond its share.
 */
#include "service/prepared/internal.h"

#include <stdlib.h>
#include <string.h>

static int has_runs(const struct attnd_plan_object *plan)
{
    return plan->prepared > 0;
}

/* ---- what a run is ---- */

/* A session may hold memory of another's making, where it may only read (a pool it attached).
 * Submitted runs are held against all pools each time they run. These are held against them once,
 * to catch a mistake; what keeps others safe is that their memory is refused altogether. */
static int check_own(const struct attnd_client *client, const struct attnd_memory *memory,
                     enum attnd_field field, struct attnd_fault *fault)
{
    if (!memory || memory->charged_bytes == 0 || memory->payer.session == client->id)
        return 0;
    return attnd_fault_set(fault, -ATTND_E_PERMISSION, field, 0, 0, 0);
}

/* Where no scratch is: a run that is answered with its code has no block, or no longer. */
#define NOWHERE (1ull << 62)

/* @service: for the pools; NULL: they have been looked at. */
static int describe(const struct attnd_prepared_runs *prepared_runs,
                    const struct attnd_prepared *prepared, const struct attnd_service *service,
                    struct attnd_run *run, struct attnd_fault *fault)
{
    const struct attnd_plan_object *plan = prepared->plan;
    const struct attnd_client *client = prepared->mail->client;
    const struct attnd_plan_lane *lane = &plan->prepared_runs->lane[prepared->lane];

    *run = (struct attnd_run){.kind = ATTND_RUN_ATTEND,
                              .generation = plan->generation,
                              .plan_offset_bytes = plan->heap_offset_bytes,
                              .layer = prepared->wish.layer,
                              .items = attnd_planobj_ready(plan) ? plan->tile_items : 0,
                              .session = client->id,
                              .weight = client->weight,
                              .scratch_offset_bytes = lane->offset_bytes,
                              .mailbox = attnd_mail_index(prepared_runs, prepared->mail),
                              .lane = prepared->lane,
                              .serial = attnd_prepared_serial(prepared)};
    if (!attnd_planobj_ready(plan))
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_PLAN, 0, 0, 0);
    if (plan->tile_items > ATTND_DOORBELL_ITEMS_MAX)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_ITEMS, 0, plan->tile_items,
                               ATTND_DOORBELL_ITEMS_MAX);
    int rc = attnd_places_attend(service, plan, &prepared->wish, prepared->memories, run, fault);
    if (rc == 0)
        rc = check_own(client, prepared->memories[1], ATTND_F_O, fault);
    if (rc == 0)
        rc = check_own(client, prepared->memories[2], ATTND_F_LSE, fault);
    if (rc == 0 && attnd_mail_has_worker(prepared_runs, prepared->mail) &&
        lane->bytes < plan->scratch_bytes)
        rc = attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_PARTIALS, 0,
                             (int64_t)plan->scratch_bytes, (int64_t)prepared_runs->scratch.bytes);
    if (rc < 0)
        run->scratch_offset_bytes = NOWHERE;
    return rc;
}

int attnd_prepared_fill(struct attnd_prepared_runs *prepared_runs,
                        const struct attnd_prepared *prepared)
{
    struct attnd_run *slot = attnd_prepared_run(prepared_runs, prepared), run;
    struct attnd_fault fault = {0};

    if (prepared->ending)
        return 0;
    run.code = (uint32_t)-describe(prepared_runs, prepared, NULL, &run, &fault);
    /* PUBLISH carries these two. */
    slot->generation = run.generation;
    slot->items = run.items;
    int differs = memcmp(slot, &run, sizeof(run)) != 0;
    *slot = run;
    return differs;
}

/* ---- scratch ---- */

static void give_block(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail,
                       struct attnd_plan_lane *lane)
{
    if (lane->bytes == 0)
        return;
    attnd_heap_give(&prepared_runs->scratch, lane->offset_bytes, lane->bytes);
    mail->scratch_bytes -= lane->bytes;
    lane->bytes = 0;
}

/* What @mail may still have: a session gets a part of the scratch, so that there is some for the
 * others, and not more than is there. Small free ranges may still be too small. */
static uint64_t left_bytes(const struct attnd_prepared_runs *prepared_runs,
                           const struct attnd_mail *mail)
{
    uint64_t share_bytes = prepared_runs->scratch.bytes / ATTND_SCRATCH_SESSION_PART;
    uint64_t free_bytes = prepared_runs->scratch.bytes - prepared_runs->scratch.used_bytes;
    uint64_t own_bytes = share_bytes > mail->scratch_bytes ? share_bytes - mail->scratch_bytes : 0;

    return own_bytes < free_bytes ? own_bytes : free_bytes;
}

/* A block of @wanted bytes; of its own, if @lane has one that will do. */
static int take_block(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail,
                      uint64_t wanted, struct attnd_plan_lane *lane, struct attnd_fault *fault)
{
    if (lane->bytes >= wanted && lane->bytes / 2 <= wanted)
        return 0;
    give_block(prepared_runs, mail, lane);
    if (wanted > left_bytes(prepared_runs, mail) ||
        (wanted && attnd_heap_take(&prepared_runs->scratch, wanted, &lane->offset_bytes) < 0))
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_PARTIALS, 0, (int64_t)wanted,
                               (int64_t)left_bytes(prepared_runs, mail));
    lane->bytes = wanted;
    mail->scratch_bytes += wanted;
    return 0;
}

/* Of what each lane needs. */
static int take_blocks(struct attnd_prepared_runs *prepared_runs, struct attnd_plan_object *plan,
                       uint64_t wanted, struct attnd_fault *fault)
{
    struct attnd_plan_prepared *own = plan->prepared_runs;
    int rc = 0;
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++)
        if (own->lane[i].uses && rc == 0)
            rc = take_block(prepared_runs, own->mail, wanted, &own->lane[i], fault);
    return rc;
}

/* Those that lanes had, where nobody has taken anything since. */
static void take_back(struct attnd_prepared_runs *prepared_runs, struct attnd_plan_prepared *own,
                      const struct attnd_plan_lane *before)
{
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++)
        if (own->lane[i].bytes != before[i].bytes ||
            own->lane[i].offset_bytes != before[i].offset_bytes)
            give_block(prepared_runs, own->mail, &own->lane[i]);
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++)
        if (before[i].bytes && !own->lane[i].bytes) {
            attnd_heap_take_again(&prepared_runs->scratch, before[i].offset_bytes, before[i].bytes);
            own->mail->scratch_bytes += before[i].bytes;
            own->lane[i] = before[i];
        }
}

int attnd_prepared_make_room(const struct attnd_plan_change *change, uint64_t scratch_bytes,
                             struct attnd_fault *fault)
{
    struct attnd_prepared_runs *prepared_runs = change->client->service->prepared_runs;
    struct attnd_plan_object *plan = change->plan;
    struct attnd_plan_lane before[ATTND_LANES_MAX];
    if (!has_runs(plan) || !attnd_mail_has_worker(prepared_runs, plan->prepared_runs->mail))
        return 0;
    memcpy(before, plan->prepared_runs->lane, sizeof(before));
    int rc = take_blocks(prepared_runs, plan, scratch_bytes, fault);
    if (rc < 0)
        take_back(prepared_runs, plan->prepared_runs, before);
    return rc;
}

void attnd_prepared_rescratch(struct attnd_prepared_runs *prepared_runs,
                              struct attnd_plan_object *plan)
{
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++)
        plan->prepared_runs->lane[i].bytes = 0;
    if (attnd_planobj_ready(plan) &&
        attnd_mail_has_worker(prepared_runs, plan->prepared_runs->mail))
        (void)take_blocks(prepared_runs, plan, plan->scratch_bytes, NULL);
}

/* ---- joining and leaving ---- */

/* Return: NULL and @fault; the plan keeps it, and counts for it, to its end. */
static struct attnd_plan_prepared *
prepared_of(struct attnd_client *client, struct attnd_plan_object *plan, struct attnd_fault *fault)
{
    const uint64_t bytes = sizeof(*plan->prepared_runs);
    if (plan->prepared_runs)
        return plan->prepared_runs;
    if (attnd_quota_charge(client, bytes, fault) < 0)
        return NULL;
    plan->prepared_runs = calloc(1, bytes);
    if (!plan->prepared_runs) {
        attnd_quota_refund(client->service, attnd_quota_payer(client), bytes);
        attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
        return NULL;
    }
    plan->charged_bytes += bytes;
    plan->prepared_runs->first = ATTND_NONE;
    return plan->prepared_runs;
}

static void unuse_lane(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail,
                       struct attnd_plan_lane *lane)
{
    if (--lane->uses == 0)
        give_block(prepared_runs, mail, lane);
}

static void take_memories(struct attnd_prepared *prepared)
{
    const struct attnd_sqe sqe = {.opcode = ATTND_OP_RUN, .u.run = prepared->wish};
    attnd_places_take(prepared->mail->client, &sqe, prepared->memories);
}

int attnd_prepared_join(struct attnd_prepared_runs *prepared_runs, struct attnd_prepared *prepared,
                        struct attnd_fault *fault)
{
    struct attnd_plan_object *plan = prepared->plan;
    struct attnd_plan_prepared *own = prepared_of(prepared->mail->client, plan, fault);
    if (!own)
        return -ATTND_E_NO_MEMORY;
    own->mail = prepared->mail;
    struct attnd_plan_lane *lane = &own->lane[prepared->lane];
    struct attnd_run run;
    int rc = 0;

    /* A lane's block that runs use may be larger or, on its way to a set, smaller than it should
     * be; only a set, which holds them, may move it. Without a worker there is none to take. */
    if (lane->uses++ == 0 && attnd_mail_has_worker(prepared_runs, own->mail))
        rc = take_block(prepared_runs, own->mail, plan->scratch_bytes, lane, fault);
    take_memories(prepared);
    if (rc == 0)
        rc = describe(prepared_runs, prepared, prepared_runs->service, &run, fault);
    if (rc < 0) {
        unuse_lane(prepared_runs, own->mail, lane);
        attnd_places_release(prepared_runs->service, prepared->memories);
        return rc;
    }
    if (plan->prepared++ == 0)
        plan->published = 0;
    plan->published |= 1u << plan->generation;
    prepared->next = own->first;
    own->first = attnd_prepared_index(prepared_runs, prepared);
    (void)attnd_prepared_fill(prepared_runs, prepared);
    return 0;
}

void attnd_prepared_leave(struct attnd_prepared_runs *prepared_runs,
                          struct attnd_prepared *prepared)
{
    struct attnd_plan_prepared *own = prepared->plan->prepared_runs;
    uint32_t *link = &own->first;
    while (*link != attnd_prepared_index(prepared_runs, prepared))
        link = &prepared_runs->prepared[*link].next;
    *link = prepared->next;
    prepared->plan->prepared--;
    unuse_lane(prepared_runs, own->mail, &own->lane[prepared->lane]);
}

/* ---- hold, publish ---- */

int attnd_prepared_taken(const struct attnd_plan_object *plan)
{
    return plan->prepared_runs && plan->prepared_runs->taken;
}

int attnd_prepared_changing(const struct attnd_plan_object *plan)
{
    return attnd_prepared_taken(plan) && plan->prepared_runs->taken->sent == ATTND_COMMAND_HOLD;
}

int attnd_prepared_stale(const struct attnd_plan_object *plan)
{
    for (uint32_t g = 0; g < ATTND_GENERATIONS; g++)
        if (g != plan->generation && plan->generation_pins[g] == 0)
            return has_runs(plan);
    return 0;
}

static void send(struct attnd_prepared_runs *prepared_runs, uint32_t kind,
                 struct attnd_plan_change *change)
{
    change->sent = kind;
    change->plan->prepared_runs->taken = change;
    attnd_control_command_plan(prepared_runs, kind, change);
    attnd_control_command_pump(prepared_runs);
}

int attnd_prepared_hold(struct attnd_plan_change *change)
{
    struct attnd_prepared_runs *prepared_runs = change->client->service->prepared_runs;
    const struct attnd_plan_object *plan = change->plan;
    if (!has_runs(plan) || !attnd_mail_has_worker(prepared_runs, plan->prepared_runs->mail))
        return 0;
    send(prepared_runs, ATTND_COMMAND_HOLD, change);
    return 1;
}

/* Nobody runs, so every generation but the one that will be published is free. */
static void held(struct attnd_plan_object *plan)
{
    plan->published = 1u << plan->generation;
}

int attnd_prepared_publish(struct attnd_plan_change *change)
{
    struct attnd_prepared_runs *prepared_runs = change->client->service->prepared_runs;
    struct attnd_plan_object *plan = change->plan;
    if (!has_runs(plan) && change->sent != ATTND_COMMAND_HOLD)
        return 0;
    if (!attnd_mail_has_worker(prepared_runs, plan->prepared_runs->mail)) {
        held(plan);
        plan->prepared_runs->taken = NULL;
        return 0;
    }
    plan->published |= 1u << plan->generation;
    send(prepared_runs, ATTND_COMMAND_PUBLISH, change);
    return 1;
}

int attnd_prepared_was_set(struct attnd_plan_change *change, struct attnd_fault *fault)
{
    struct attnd_prepared_runs *prepared_runs = change->client->service->prepared_runs;
    struct attnd_plan_object *plan = change->plan;
    int rc = 0;
    if (!has_runs(plan))
        return 0;
    if (plan->filled && attnd_mail_has_worker(prepared_runs, plan->prepared_runs->mail))
        rc = take_blocks(prepared_runs, plan, plan->scratch_bytes, fault);
    if (rc < 0) /* a worker died meanwhile, and the next one has less */
        plan->filled = 0;
    held(plan);
    for (uint32_t i = plan->prepared_runs->first; i != ATTND_NONE;
         i = prepared_runs->prepared[i].next)
        if (attnd_prepared_fill(prepared_runs, &prepared_runs->prepared[i]))
            attnd_control_command_prepared(prepared_runs, &prepared_runs->prepared[i]);
    return rc;
}

int attnd_prepared_acked(struct attnd_plan_change *change, uint32_t kind, int closing)
{
    struct attnd_prepared_runs *prepared_runs = change->client->service->prepared_runs;
    if (kind != ATTND_COMMAND_HOLD) {
        change->plan->prepared_runs->taken = NULL;
        return 0;
    }
    if (!closing) {
        held(change->plan);
        return 0;
    }
    if (prepared_runs->lost) {
        change->plan->prepared_runs->taken = NULL;
        return 0;
    }
    send(prepared_runs, ATTND_COMMAND_PUBLISH, change);
    return 1;
}
