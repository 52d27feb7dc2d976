/*
 * places.c - the memory a run names: does it exist, is it large enough, may it be written?
 *
 * Handles are looked up when the run is submitted, and what they name is held until it is done: a
 * handle given out again meanwhile is another memory. The rest is checked at the run's step,
 * because how far q, o and lse reach depends on the batch that is in the plan then. Two handles of
 * one object are one object here, so an output is compared with inputs by object and byte range. An
 * output may not lie in any pool's planes either: a session that attached a pool for reading holds
 * a handle of its memory, and a run must not become a way to write it.
 */
#include "service/objects/places.h"

#include "service/admission/admit.h"

struct region {
    const struct attnd_memory *memory;
    uint64_t begin, end;
};

struct want {
    enum attnd_field field;
    uint32_t handle;
    uint32_t align;
    uint64_t offset_bytes, bytes;
};

static const struct attnd_place absent = {.memory = ATTND_NONE};

/* The handles in the order of the memories of an operation. */
static void handles_of(const struct attnd_sqe *sqe, uint32_t handles[ATTND_RUN_PLACES])
{
    int runs = sqe->opcode == ATTND_OP_RUN, appends = sqe->opcode == ATTND_OP_APPEND;
    handles[0] = runs ? sqe->u.run.q_memory : appends ? sqe->u.append.k_memory : 0;
    handles[1] = runs ? sqe->u.run.o_memory : appends ? sqe->u.append.v_memory : 0;
    handles[2] = runs ? sqe->u.run.lse_memory : 0;
}

void attnd_places_take(const struct attnd_client *client, const struct attnd_sqe *sqe,
                       struct attnd_memory *memories[ATTND_RUN_PLACES])
{
    uint32_t handles[ATTND_RUN_PLACES] = {0};
    handles_of(sqe, handles);
    for (uint32_t i = 0; i < ATTND_RUN_PLACES; i++) {
        memories[i] = attnd_client_memory(client, handles[i]);
        if (memories[i])
            attnd_memory_ref(memories[i]);
    }
}

void attnd_places_take_merge(const struct attnd_client *client,
                             const struct attnd_merge_view *merge,
                             struct attnd_memory *memories[ATTND_RUN_PLACES])
{
    for (uint32_t i = 0; i < ATTND_MERGE_PLACES; i++) {
        memories[i] = attnd_client_memory(client, merge->at[i].memory);
        if (memories[i])
            attnd_memory_ref(memories[i]);
    }
}

void attnd_places_release(struct attnd_service *service,
                          struct attnd_memory *const memories[ATTND_RUN_PLACES])
{
    for (uint32_t i = 0; i < ATTND_RUN_PLACES; i++)
        if (memories[i])
            attnd_memory_unref(service, memories[i]);
}

/* Fills @place and @span. Return: 0, or the fault's code. */
static int resolve(const struct attnd_memory *memory, const struct want *want,
                   struct attnd_place *place, struct region *span, struct attnd_fault *fault)
{
    if (!memory)
        return attnd_fault_set(fault, -ATTND_E_UNKNOWN, want->field, 0, want->handle, 0);
    if (want->offset_bytes % want->align != 0)
        return attnd_fault_set(fault, -ATTND_E_INVALID, want->field, 0, (int64_t)want->offset_bytes,
                               want->align);
    uint64_t size = memory->size_bytes, end;
    if (__builtin_add_overflow(want->offset_bytes, want->bytes, &end) || end > size) {
        int64_t value = end > INT64_MAX || end < want->bytes ? INT64_MAX : (int64_t)end;
        return attnd_fault_set(fault, -ATTND_E_RANGE, want->field, 0, value, (int64_t)size);
    }
    *place = (struct attnd_place){.memory = memory->index, .offset_bytes = want->offset_bytes};
    *span = (struct region){memory, want->offset_bytes, end};
    return 0;
}

static int overlaps(const struct region *a, const struct region *b)
{
    return a->memory == b->memory && a->begin < b->end && b->begin < a->end;
}

static int refuse_overlap(const struct region *output, enum attnd_field field,
                          const struct region *other, struct attnd_fault *fault)
{
    if (!overlaps(output, other))
        return 0;
    return attnd_fault_set(fault, -ATTND_E_OVERLAP, field, 0, (int64_t)output->begin,
                           (int64_t)other->begin);
}

static int refuse_planes(const struct region *span, enum attnd_field field,
                         struct attnd_fault *fault)
{
    const struct attnd_interval *plane =
        span->memory ? attnd_intervals_find(span->memory->planes, span->begin, span->end) : NULL;

    if (!plane)
        return 0;
    return attnd_fault_set(fault, -ATTND_E_OVERLAP, field, 0, (int64_t)span->begin,
                           (int64_t)plane->begin);
}

int attnd_places_attend(const struct attnd_service *service, const struct attnd_plan_object *plan,
                        const struct attnd_sqe_run *sqe, struct attnd_memory *const *memories,
                        struct attnd_run *run, struct attnd_fault *fault)
{
    const struct want q_want = {ATTND_F_Q, sqe->q_memory, 16, sqe->q_offset_bytes,
                                plan->extents.q_bytes};
    const struct want o_want = {ATTND_F_O, sqe->o_memory, 16, sqe->o_offset_bytes,
                                plan->extents.o_bytes};
    struct region q = {0}, o = {0}, lse = {0};

    run->q = run->o = run->lse = run->k = run->v = run->w = absent;
    int rc = resolve(memories[0], &q_want, &run->q, &q, fault);
    if (rc == 0)
        rc = resolve(memories[1], &o_want, &run->o, &o, fault);
    if (rc == 0)
        rc = refuse_overlap(&o, ATTND_F_O, &q, fault);
    if (rc == 0 && service)
        rc = refuse_planes(&o, ATTND_F_O, fault);
    if (rc < 0 || sqe->lse_memory == 0)
        return rc;

    const struct want lse_want = {ATTND_F_LSE, sqe->lse_memory, 4, sqe->lse_offset_bytes,
                                  plan->extents.lse_bytes};
    rc = resolve(memories[2], &lse_want, &run->lse, &lse, fault);
    if (rc == 0)
        rc = refuse_overlap(&lse, ATTND_F_LSE, &q, fault);
    if (rc == 0)
        rc = refuse_overlap(&lse, ATTND_F_LSE, &o, fault);
    return rc < 0 || !service ? rc : refuse_planes(&lse, ATTND_F_LSE, fault);
}

/* The output of an append is the pool, so its inputs may not lie there. */
int attnd_places_append(const struct attnd_plan_object *plan, const struct attnd_sqe_append *sqe,
                        struct attnd_memory *const *memories, struct attnd_run *run,
                        struct attnd_fault *fault)
{
    const struct want k_want = {ATTND_F_K, sqe->k_memory, 16, sqe->k_offset_bytes,
                                plan->extents.k_bytes};
    const struct want v_want = {ATTND_F_V, sqe->v_memory, 16, sqe->v_offset_bytes,
                                plan->extents.v_bytes};
    struct region k = {0}, v = {0};

    run->q = run->o = run->lse = run->k = run->v = run->w = absent;
    int rc = resolve(memories[0], &k_want, &run->k, &k, fault);
    if (rc == 0)
        rc = resolve(memories[1], &v_want, &run->v, &v, fault);
    if (rc == 0)
        rc = refuse_planes(&k, ATTND_F_K, fault);
    return rc < 0 ? rc : refuse_planes(&v, ATTND_F_V, fault);
}

static int same(const struct region *a, const struct region *b)
{
    return a->memory == b->memory && a->begin == b->begin && a->end == b->end;
}

/* An output may take the place of an input of its own kind: what is at an element is read before it
 * is written there. */
static int refuse_merge_overlap(const struct region spans[ATTND_MERGE_PLACES], uint32_t output,
                                enum attnd_field field, struct attnd_fault *fault)
{
    for (uint32_t i = 0; i < ATTND_MERGE_PLACES; i++) {
        const int alike = i % 2 == output % 2;
        if (i == output || (alike && i < ATTND_MERGE_O && same(&spans[output], &spans[i])))
            continue;
        int rc = refuse_overlap(&spans[output], field, &spans[i], fault);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int attnd_places_merge(const struct attnd_plan_object *plan, const struct attnd_merge_view *merge,
                       struct attnd_memory *const *memories, struct attnd_run *run,
                       struct attnd_fault *fault)
{
    static const enum attnd_field fields[] = {ATTND_F_O_A,   ATTND_F_LSE_A, ATTND_F_O_B,
                                              ATTND_F_LSE_B, ATTND_F_O,     ATTND_F_LSE};
    struct attnd_place *const places[] = {&run->q, &run->v, &run->k, &run->w, &run->o, &run->lse};
    struct region spans[ATTND_MERGE_PLACES] = {{0}};

    run->q = run->o = run->lse = run->k = run->v = run->w = absent;
    for (uint32_t i = 0; i < ATTND_MERGE_PLACES; i++) {
        const struct attnd_merge_place *at = &merge->at[i];
        const int is_lse = i % 2;
        const struct want want = {fields[i], at->memory, is_lse ? 4 : 16, at->offset_bytes,
                                  is_lse ? plan->extents.lse_bytes : plan->extents.o_bytes};
        if (i == ATTND_MERGE_LSE && at->memory == 0)
            continue;
        int rc = resolve(memories[i], &want, places[i], &spans[i], fault);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = ATTND_MERGE_O; i <= ATTND_MERGE_LSE; i++) {
        int rc = refuse_merge_overlap(spans, i, fields[i], fault);
        if (rc == 0)
            rc = refuse_planes(&spans[i], fields[i], fault);
        if (rc < 0)
            return rc;
    }
    return 0;
}
