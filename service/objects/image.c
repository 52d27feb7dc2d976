/*
 * image.c - the image of a plan: the plan as an engine's kernels read it.
 *
 * The heap is the worker's and the daemon's. An engine that executes its own runs gets a copy in a
 * memfd of its own, which the daemon brings up to date whenever the plan changes, under a sequence
 * number. Bytes that change are those of dispatch/mirror.cuh, and lie at the heap's offsets behind
 * the image's head:
 *
 *   a set        the plan's head and variant, its arrays, all page ids, lengths of its generation
 *   an advance   lengths of the new generation, and page ids that they reach for the first time
 *
 * Sizes and offsets are those of the planner's private half. The heap is only a source of bytes,
 * for a worker may have scribbled there.
 */
#include "service/objects/image.h"

#include "ipc/shm.h"
#include "schemas/atomics.h"
#include "schemas/engine.h"
#include "schemas/variant.h"

#include <stdlib.h>
#include <string.h>

/* ---- copying ---- */

/* One plan, here and there. */
struct copy {
    const struct attnd_plan_head *shape; /* private */
    const char *from;
    char *to;
    uint32_t *pages_there;
};

static struct copy copy_of(const struct attnd_plan_object *object)
{
    return (struct copy){.shape = attnd_plan_shape(object->plan),
                         .from = (const char *)attnd_plan_head(object->plan),
                         .to = (char *)object->image.address + ATTND_IMAGE_PLAN_AT,
                         .pages_there = object->image_pages};
}

static void copy_bytes(const struct copy *copy, uint64_t offset_bytes, uint64_t bytes)
{
    memcpy(copy->to + offset_bytes, copy->from + offset_bytes, bytes);
}

/* The session's name of a table's memory. The worker's number of it says nothing to the engine. */
static uint32_t handle_of(const struct attnd_client *client, const struct attnd_memory *memory)
{
    for (uint32_t i = 0; memory && i < ATTND_HANDLES_MAX; i++)
        if (client->memories[i] == memory)
            return i + 1;
    return ATTND_NONE;
}

static void copy_front(const struct copy *copy, const struct attnd_client *client,
                       const struct attnd_plan_object *object)
{
    struct attnd_variant variant;

    memcpy(copy->to, copy->shape, sizeof(*copy->shape));
    memcpy(&variant, copy->from + sizeof(*copy->shape), sizeof(variant));
    variant.mask.memory = handle_of(client, object->tables[ATTND_TABLE_MASK]);
#define OPTION(name, field, value)
#define TABLE(name, field, member, elements, beside)                                               \
    variant.member.memory = handle_of(client, object->tables[ATTND_TABLE_##name]);
#include "schemas/options.def"
    memcpy(copy->to + sizeof(*copy->shape), &variant, sizeof(variant));
}

static uint32_t first_rows_of(const struct copy *copy)
{
    const struct attnd_tile *first = (const void *)(copy->to + copy->shape->tiles_offset_bytes);

    return copy->shape->tiles ? first->row_count * copy->shape->group : 0;
}

static uint32_t most_rows_of(const struct attnd_plan_head *shape,
                             const struct attnd_plan_object *object)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < shape->entries; i++) {
        const uint32_t rows = attnd_plan_entry(object->plan, i)->row_count * shape->group;
        most = rows > most ? rows : most;
    }
    return most;
}

/* All page ids, also such as no length reaches yet. */
static void copy_pages(const struct copy *copy, const struct attnd_plan_object *object)
{
    const struct attnd_plan_head *shape = copy->shape;
    uint64_t end = 0;

    for (uint32_t i = 0; i < shape->entries; i++) {
        const struct attnd_entry *entry = attnd_plan_entry(object->plan, i);
        const uint64_t entry_end = (uint64_t)entry->page_begin + entry->page_count;
        end = entry_end > end ? entry_end : end;
        copy->pages_there[i] = 0;
    }
    copy_bytes(copy, shape->kv_pages_offset_bytes, end * sizeof(int32_t));
}

static void copy_arrays(const struct copy *copy)
{
    const struct attnd_plan_head *shape = copy->shape;

    copy_bytes(copy, shape->entries_offset_bytes,
               (uint64_t)shape->entries * sizeof(struct attnd_entry));
    copy_bytes(copy, shape->tiles_offset_bytes, (uint64_t)shape->tiles * sizeof(struct attnd_tile));
    copy_bytes(copy, shape->merges_offset_bytes,
               (uint64_t)shape->merges * sizeof(struct attnd_merge));
    copy_bytes(copy, shape->merge_parts_offset_bytes, (uint64_t)shape->parts * sizeof(uint32_t));
    if (shape->options & ATTND_OPTION_MASK)
        copy_bytes(copy, shape->mask_begin_offset_bytes,
                   (uint64_t)shape->entries * sizeof(uint32_t));
}

/* Lengths of the plan's generation. Page ids that they reach for the first time since the set are
 * copied unless all are there (@all_pages); ids that were reached before do not change. */
static void copy_lengths(const struct copy *copy, const struct attnd_plan_object *object,
                         int all_pages)
{
    const struct attnd_plan_head *shape = copy->shape;
    const uint32_t page_size = object->attachment->pool->shape.page_size;
    const uint64_t at = shape->kv_len_offset_bytes +
                        (uint64_t)object->generation * shape->entries_max * sizeof(int32_t);
    const uint32_t numbers = shape->flags & ATTND_PLAN_PLACED ? shape->entries_max : shape->entries;

    copy_bytes(copy, at, (uint64_t)numbers * sizeof(int32_t));
    const int32_t *lengths = (const void *)(copy->to + at);
    for (uint32_t i = 0; i < shape->entries; i++) {
        const struct attnd_entry *entry = attnd_plan_entry(object->plan, i);
        const uint32_t tokens = lengths[i] > 0 ? (uint32_t)lengths[i] : 0;
        const uint32_t pages = tokens / page_size + (tokens % page_size != 0);
        const uint32_t reached = pages < entry->page_count ? pages : entry->page_count;
        const uint32_t there = copy->pages_there[i];
        if (reached <= there)
            continue;
        copy->pages_there[i] = reached;
        if (!all_pages)
            copy_bytes(copy,
                       shape->kv_pages_offset_bytes +
                           ((uint64_t)entry->page_begin + there) * sizeof(int32_t),
                       (uint64_t)(reached - there) * sizeof(int32_t));
    }
}

/* ---- writing ---- */

static struct attnd_plan_image *head_of(const struct attnd_plan_object *object)
{
    return object->image.address;
}

/* Everything, as planobj has it now. */
static void write_all(const struct attnd_client *client, const struct attnd_plan_object *object)
{
    struct attnd_plan_image *head = head_of(object);
    const struct copy copy = copy_of(object);
    copy_front(&copy, client, object);
    copy_arrays(&copy);
    copy_pages(&copy, object);
    copy_lengths(&copy, object, 1);
    head->set_version = object->set_version;
    head->items = object->tile_items;
    head->first_rows = first_rows_of(&copy);
    head->most_rows = most_rows_of(copy.shape, object);
    head->scratch_bytes = object->scratch_bytes;
    head->code = 0;
}

void attnd_image_write(const struct attnd_client *client, const struct attnd_plan_object *object,
                       int code)
{
    if (!object->image.address)
        return;
    struct attnd_plan_image *head = head_of(object);
    struct attnd_plan_head *shown = (void *)((char *)object->image.address + ATTND_IMAGE_PLAN_AT);
    const int other = head->code != 0 || head->set_version != object->set_version;
    if (object->filled && !other && head->advance_version == object->advance_version)
        return;
    attnd_change_begin32(&head->sequence);
    if (!object->filled || object->planning) {
        head->code = (uint32_t)(code < 0 ? -code : ATTND_E_INVALID);
    } else {
        const struct copy copy = copy_of(object);
        if (other)
            write_all(client, object);
        else
            copy_lengths(&copy, object, 0);
        shown->advance_version = head->advance_version = object->advance_version;
        shown->generation = head->generation = object->generation;
    }
    attnd_change_end32(&head->sequence);
}

/* ---- making ---- */

/* It is charged for. */
static int allocate(struct attnd_plan_object *object, uint64_t size_bytes,
                    struct attnd_fault *fault)
{
    struct attnd_shm shm;
    uint32_t *pages = calloc(object->kv_len_stride, sizeof(*pages));
    if (!pages)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    int rc = attnd_shm_create("attnd-plan-image", size_bytes, &shm, fault);
    if (rc < 0) {
        free(pages);
        return rc;
    }
    rc = attnd_memory_check_fd(shm.fd, fault);
    if (rc == 0 && attnd_shm_seal(shm.fd, ATTND_SEAL_COMPLETION) < 0)
        rc = attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_SEALS, 0, 0, 0);
    if (rc < 0) {
        free(pages);
        attnd_shm_unmap(&shm);
        return rc;
    }
    object->image = shm;
    object->image_pages = pages;
    return 0;
}

static int make(struct attnd_client *client, struct attnd_plan_object *object,
                struct attnd_fault *fault)
{
    const uint64_t size_bytes = (ATTND_IMAGE_PLAN_AT + object->heap_bytes + ATTND_PAGE_BYTES - 1) /
                                ATTND_PAGE_BYTES * ATTND_PAGE_BYTES;
    const uint64_t charged_bytes = size_bytes + (uint64_t)object->kv_len_stride * sizeof(uint32_t);
    int rc = attnd_quota_charge(client, charged_bytes, fault);
    if (rc < 0)
        return rc;
    rc = allocate(object, size_bytes, fault);
    if (rc < 0) {
        attnd_quota_refund(client->service, attnd_quota_payer(client), charged_bytes);
        return rc;
    }
    object->charged_bytes += charged_bytes;
    struct attnd_plan_image *head = head_of(object);
    head->page_size = object->attachment->pool->shape.page_size;
    head->plan_bytes = object->heap_bytes;
    head->pace = attnd_plan_pace(object->plan);
    head->code = ATTND_E_INVALID;
    attnd_image_write(client, object, -ATTND_E_INVALID);
    return 0;
}

int attnd_image_open(struct attnd_client *client, struct attnd_plan_object *object, int *fd,
                     uint64_t *size_bytes, struct attnd_fault *fault)
{
    int rc = object->image.address ? 0 : make(client, object, fault);
    if (rc < 0)
        return rc;
    *fd = object->image.fd;
    *size_bytes = object->image.size_bytes;
    return 0;
}
