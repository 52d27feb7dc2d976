/*
 * planobj.h - plan objects: the planner's plan, and what every run of it needs to know.
 */
#ifndef ATTND_SERVICE_OBJECTS_PLANOBJ_H
#define ATTND_SERVICE_OBJECTS_PLANOBJ_H

#include "ipc/shm.h"
#include "persistent/plan/plan.h"
#include "service/objects/arrival.h"
#include "service/objects/pool.h"

struct attnd_plan_prepared; /* prepared/prepared.h; one block of malloc() */

/* The lengths that one operation reads. */
struct attnd_lengths {
    uint32_t generation;      /* ATTND_NONE: not pinned */
    uint32_t advance_version; /* of the advance or set that wrote them */
};

/* A set that was refused. What its client submitted in that lane before it knew must not run with
 * the batch before. */
struct attnd_refusal {
    uint32_t number, lane; /* of the session's; 0: none since the last set that succeeded */
};

struct attnd_plan_object {
    struct attnd_closing closing; /* first: at the very end */
    struct attnd_plan *plan;
    struct attnd_attachment *attachment;
    struct attnd_batch_limits limits;
    uint64_t heap_offset_bytes, heap_bytes;
    uint64_t charged_bytes;                      /* of the daemon's memory */
    uint32_t tile_rows;                          /* packed, of the worker\'s tiles */
    struct attnd_payer payer;                    /* its session: of those, and of the heap's */
    uint32_t generation;                         /* that a run submitted now would use */
    uint32_t generation_pins[ATTND_GENERATIONS]; /* operations that hold each */
    uint32_t in_flight;                          /* operations queued or dispatched */
    uint32_t filled;                             /* a plan_set succeeded */
    uint32_t planning;                           /* a set is under way: nobody else may use it */
    uint32_t prepared;                           /* runs that a mailbox launches */
    struct attnd_refusal refusal;                /* of the last set, if it was refused */
    uint32_t published;                          /* bit g: launched runs may read generation g */
    struct attnd_plan_prepared *prepared_runs;   /* of those; NULL: never had any */
    uint32_t kv_len_stride;                      /* between generations */
    struct attnd_shm image; /* image.h; address NULL: no engine has asked for it */
    uint32_t *image_pages;  /* [kv_len_stride]: page ids of each entry that it has */

    /* of the batch it is filled with */
    uint64_t set_version; /* as the worker finds them in the heap */
    uint32_t advance_version;
    uint32_t tile_items, append_items, merge_items; /* queue items of each kind of run */
    struct attnd_extents extents;                   /* from a tensor's offset */
    uint64_t scratch_bytes;                         /* of a run */
    uint64_t level_bytes;                           /* of these, what the batch's own levels save */
    uint64_t shared_bytes; /* of K and V that a run does not read: the batch's levels, found ones */
    uint32_t fused;        /* both classes of tiles are done at once */
    struct attnd_memory *tables[ATTND_TABLES]; /* of its variant, referenced; or NULL */
    struct attnd_append_entry *append;         /* planobj.c; [append_entries] */
    uint32_t append_first, append_entries;     /* the last level's */
    const int32_t *kv_pages, *kv_len;          /* in the heap */
    struct attnd_plan_awaits awaits;           /* its pages that are on their way */
    struct attnd_plan_awaits awaits_before;    /* while that may still be refused */
};

/** attnd_planobj_create() - heap memory and planner state for capacities, which count against
 * @client. Return: 0; -ATTND_E_RANGE; -ATTND_E_NO_MEMORY. */
int attnd_planobj_create(struct attnd_client *client, struct attnd_attachment *attachment,
                         const struct attnd_batch_limits *limits, struct attnd_plan_object **out,
                         struct attnd_fault *fault);
/** attnd_planobj_destroy() - only when in_flight is 0. */
void attnd_planobj_destroy(struct attnd_service *service, struct attnd_plan_object *object);

/** attnd_planobj_ready() - 1: runs may use it. */
static inline int attnd_planobj_ready(const struct attnd_plan_object *object)
{
    return object->filled && !object->planning;
}

/* A set, step by step. Building and writing are long: any thread may do them, while
 * object->planning says that nobody else may touch the plan. Until it is written the plan is what
 * it was, and after a failure it stays so; @fault says why. */

/** attnd_planobj_check() - leases of some pages, from page *@done on. Return: 1 there are more; 0
 * all are held; the fault's code. */
int attnd_planobj_check(const struct attnd_plan_object *object,
                        const struct attnd_batch_view *batch, uint32_t *done,
                        struct attnd_fault *fault);
/** attnd_planobj_build() - tiles of an admitted batch. Return: 0; the fault's code. */
int attnd_planobj_build(struct attnd_plan_object *object, const struct attnd_batch_view *batch,
                        struct attnd_fault *fault);
/** attnd_planobj_check_scratch() - of what was built: its partials fit. @scratch_bytes: what a run
 * of it needs. Return: 0; the fault's code. */
int attnd_planobj_check_scratch(const struct attnd_plan_object *object,
                                uint64_t scratch_limit_bytes, uint64_t *scratch_bytes,
                                struct attnd_fault *fault);
/** attnd_planobj_refuses() - 1: an operation of @lane, whose client knew of @refusals, was meant
 * for a batch that was refused. */
int attnd_planobj_refuses(const struct attnd_plan_object *object, uint32_t lane, uint32_t refusals);
/** attnd_planobj_drop() - what was built, and is not written, is forgotten. */
void attnd_planobj_drop(struct attnd_plan_object *object);
/** attnd_planobj_write() - what was built goes where the worker reads it. */
void attnd_planobj_write(struct attnd_plan_object *object, const struct attnd_batch_view *batch);
/** attnd_planobj_hold() - the plan lets go of its tables and takes over the references of @tables,
 * which are NULL afterwards. */
void attnd_planobj_hold(struct attnd_service *service, struct attnd_plan_object *object,
                        struct attnd_memory **tables);
/** attnd_planobj_fill() - the plan is what was written. */
void attnd_planobj_fill(struct attnd_plan_object *object);

/* An advance is checked, planned and taken over; only what lies between may be done by another
 * thread. */

/** attnd_planobj_check_advance() - pages that it appends are in the pool, and the session's. */
int attnd_planobj_check_advance(const struct attnd_plan_object *object,
                                const struct attnd_advance_view *advance,
                                struct attnd_fault *fault);
/** attnd_planobj_unshares() - 1: it shrinks into keys that are read for several requests, so the
 * plan is made again. */
int attnd_planobj_unshares(const struct attnd_plan_object *object,
                           const struct attnd_advance_view *advance);
/** attnd_planobj_plan_advance() - new lengths into @generation, a free one; ATTND_NONE: tiles are
 * built again for them, and no run of the plan may be in flight. */
int attnd_planobj_plan_advance(struct attnd_plan_object *object,
                               const struct attnd_advance_view *advance, uint32_t generation,
                               struct attnd_fault *fault);
/** attnd_planobj_write_advance() - the tiles that were built again, as attnd_planobj_write(). */
void attnd_planobj_write_advance(struct attnd_plan_object *object,
                                 const struct attnd_advance_view *advance);
/** attnd_planobj_advanced() - the lengths of @generation are in force. */
void attnd_planobj_advanced(struct attnd_plan_object *object, uint32_t generation);
/** attnd_planobj_free_generation() - one that nobody holds or may read, or -1. */
int attnd_planobj_free_generation(const struct attnd_plan_object *object);
/** attnd_planobj_pin() - the lengths of now stay until they are unpinned. @lengths that are pinned
 * stay as they are. The plan is filled. */
void attnd_planobj_pin(struct attnd_plan_object *object, struct attnd_lengths *lengths);
/** attnd_planobj_unpin() - harmless where nothing is pinned. */
void attnd_planobj_unpin(struct attnd_plan_object *object, struct attnd_lengths *lengths);
/** attnd_planobj_check_append() - may the rows be stored where the lengths of @generation put
 * them? */
int attnd_planobj_check_append(const struct attnd_plan_object *object, uint32_t generation,
                               struct attnd_fault *fault);

/** attnd_planobj_command() - what a command says of @run, which reads the lengths of the advance
 * @advance_version, beside its kind and number. */
void attnd_planobj_command(const struct attnd_plan_object *object, const struct attnd_run *run,
                           uint32_t advance_version, struct attnd_command *command);

#endif
