/*
 * test_image.c - the image of a plan: what an engine's kernels would read there is what the planner
 * wrote to the heap, after every change, and nobody but the daemon can change it.
 *
 * The judge does not know what image.c copies. It walks the heap by the heap's own head, and the
 * image through a mapping of its own.
 */
#include "persistent/plan/plan.h"
#include "schemas/attnd.pb-c.h"
#include "schemas/engine.h"
#include "schemas/variant.h"
#include "service/objects/image.h"
#include "service/supervise/queue.h"
#include "tests/support/harness/check.h"
#include "tests/support/rigs/stage_rig.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define ENTRIES 8u
#define PAGE 16
#define POOL_PAGES 2048u
#define KEYS 2000 /* of each request, 125 pages */
#define LIST_PAGES (ENTRIES * (KEYS / PAGE))
#define RESERVE 4u

static struct attnd_pool *pool;
static struct attnd_memory *memory; /* of the pool, and of tables */
static struct attnd_plan_object *object;
static struct attnd_fault fault;
static uint64_t scratch_bytes; /* that partials must fit in */
static int32_t qo_indptr[ENTRIES + 1], kv_indptr[ENTRIES + 1], kv_indices[LIST_PAGES];
static int32_t last_page_len[ENTRIES], mask_indptr[ENTRIES + 1];
static int32_t cascade_qo[3] = {0, 4, 8}, cascade_kv[3] = {0, 2, 4};
static int32_t cascade_pages[4] = {2000, 2001, 2002, 2003}, cascade_last[2] = {PAGE, PAGE};

/* ---- a plan ---- */

static void make_pool(void)
{
    const struct attnd_heap_pool shape = {.layers = 1,
                                          .pages = POOL_PAGES,
                                          .page_size = PAGE,
                                          .heads_kv = 2,
                                          .dim_qk = 128,
                                          .dim_vo = 128,
                                          .dtype = ATTND_FP16};
    struct attnd_heap_plane planes[2] = {{.memory = memory->index}, {.memory = memory->index}};
    uint32_t handle;
    CHECK_EQUAL(attnd_pool_new(&stage.maker, &shape, ATTND__PAGE_OWNER__OWNER_ENGINE, planes,
                               &memory, 1, &pool, &fault),
                0);
    CHECK_EQUAL(attnd_client_attach(client.daemon, pool, 1, &handle, &fault), 0);
    attnd_pool_unref(&stage.service, pool); /* the attachment has it */
}

static void make_plan(void)
{
    const struct attnd_batch_limits limits = {.pool_pages = POOL_PAGES,
                                              .page_size = PAGE,
                                              .heads_q = 16,
                                              .heads_kv = 2,
                                              .dim_qk = 128,
                                              .dim_vo = 128,
                                              .pool_dtype = ATTND_FP16,
                                              .requests = 2 * ENTRIES,
                                              .rows = 64,
                                              .pages = POOL_PAGES,
                                              .levels = 2};
    struct attnd_attachment *attachment =
        client.daemon->attachments[attnd_client_attached(client.daemon, pool) - 1];
    CHECK_EQUAL(attnd_planobj_create(client.daemon, attachment, &limits, &object, &fault), 0);
    client.daemon->plans[0] = object;
    attachment->plans++;
}

static int setup(void **state)
{
    uint32_t handle;
    (void)state;
    stage_start(&stage);
    stage.service.options.cascade = "hint";
    stage.service.options.memory_max_bytes = 1u << 20;
    stage.service.options.host_memory_max_bytes = 1u << 20;
    stage.service.queue->info.tile_workers = 131;
    stage.service.queue->info.sms = 132;
    stage.service.queue->info.rows_per_tile = 128;
    /* Slow memory, so that even these few keys are worth sharing. */
    stage.service.queue->rates = (struct attnd_rates){5200, 1, 1, 100, ATTND_RATES_GIVEN};
    stage_connect(&stage, &client, 16, 1);
    CHECK_EQUAL(attnd_memory_make(client.daemon, ATTND_KIND_HOST, 65536, &memory, &fault), 0);
    CHECK_EQUAL(attnd_memory_bind(client.daemon, memory, &handle, &fault), 0);
    make_pool();
    make_plan();
    fault = (struct attnd_fault){0};
    scratch_bytes = UINT64_MAX;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stage_stop(&stage);
    return 0;
}

/* Decodes of KEYS each. The first @alike pages are the same for all. */
static struct attnd_batch_view batch_of(uint32_t alike)
{
    const int32_t pages = KEYS / PAGE;
    for (uint32_t r = 0; r < ENTRIES; r++) {
        qo_indptr[r + 1] = (int32_t)r + 1;
        kv_indptr[r + 1] = ((int32_t)r + 1) * pages;
        last_page_len[r] = PAGE;
        mask_indptr[r + 1] = ((int32_t)r + 1) * KEYS / 8;
        for (int32_t p = 0; p < pages; p++)
            kv_indices[(int32_t)r * pages + p] =
                (uint32_t)p < alike ? p : (int32_t)r * pages + p + 500;
    }
    return (struct attnd_batch_view){.rows = ENTRIES,
                                     .levels = 1,
                                     .entries = ENTRIES,
                                     .pages = LIST_PAGES,
                                     .reserve_pages = RESERVE,
                                     .heads_q = 16,
                                     .dtype = ATTND_FP16,
                                     .flags = ATTND_BATCH_CAUSAL |
                                              (alike ? ATTND_BATCH_SHARED_PAGES : 0),
                                     .sm_scale = 0.125f,
                                     .leased = 1,
                                     .level = {{.entries = ENTRIES,
                                                .pages = LIST_PAGES,
                                                .qo_indptr = qo_indptr,
                                                .kv_indptr = kv_indptr,
                                                .kv_indices = kv_indices,
                                                .kv_last_page_len = last_page_len}}};
}

/* As the scheduler sets it. @table: memory of every table of the variant; NULL: it has none. */
static int set(const struct attnd_batch_view *batch, struct attnd_memory *table)
{
    struct attnd_memory *tables[ATTND_TABLES] = {NULL};
    uint64_t needed;
    fault = (struct attnd_fault){0};
    int rc = attnd_planobj_build(object, batch, &fault);
    if (rc == 0 && (rc = attnd_planobj_check_scratch(object, scratch_bytes, &needed, &fault)) < 0)
        attnd_planobj_drop(object);
    for (uint32_t i = 0; rc == 0 && table && i < ATTND_TABLES; i++) {
        tables[i] = table;
        attnd_memory_ref(table);
    }
    if (rc == 0) {
        attnd_planobj_write(object, batch);
        attnd_planobj_hold(&stage.service, object, tables);
        attnd_planobj_fill(object);
    }
    attnd_image_write(client.daemon, object, rc);
    return rc;
}

static int advance(const struct attnd_advance_view *view)
{
    fault = (struct attnd_fault){0};
    const uint32_t generation = (uint32_t)attnd_planobj_free_generation(object);
    if (attnd_planobj_check_advance(object, view, &fault) == 0)
        (void)attnd_planobj_plan_advance(object, view, generation, &fault);
    if (fault.code == 0)
        attnd_planobj_advanced(object, generation);
    attnd_image_write(client.daemon, object, fault.code);
    return fault.code;
}

/* ---- the judge ---- */

/* The image as an engine maps it. */
static const struct attnd_plan_image *open_image(void)
{
    static void *mapped;
    static uint64_t mapped_bytes;
    uint64_t bytes;
    int fd;
    CHECK_EQUAL(attnd_image_open(client.daemon, object, &fd, &bytes, &fault), 0);
    if (mapped)
        munmap(mapped, mapped_bytes);
    mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    mapped_bytes = bytes;
    CHECK(mapped != MAP_FAILED);
    return mapped;
}

static const char *heap(void)
{
    return attnd_heap_at(stage.service.queue, object->heap_offset_bytes);
}

static const char *plan_in(const struct attnd_plan_image *image)
{
    return (const char *)image + ATTND_IMAGE_PLAN_AT;
}

static void expect_same(const struct attnd_plan_image *image, uint64_t at, uint64_t bytes)
{
    CHECK(at + bytes <= image->plan_bytes);
    CHECK(memcmp(plan_in(image) + at, heap() + at, bytes) == 0);
}

/* Lengths of the generation that is valid, and every page id that they reach. */
static void expect_lengths(const struct attnd_plan_image *image)
{
    const struct attnd_plan_head *head = (const void *)heap();
    const struct attnd_entry *entries = (const void *)(heap() + head->entries_offset_bytes);
    const uint64_t lengths_at =
        head->kv_len_offset_bytes + 4ull * head->generation * head->entries_max;
    const int32_t *lengths = (const void *)(heap() + lengths_at);
    const int placed = (head->flags & ATTND_PLAN_PLACED) != 0;
    CHECK_EQUAL(image->generation, head->generation);
    CHECK_EQUAL(image->advance_version, head->advance_version);
    expect_same(image, lengths_at, 4ull * (placed ? head->entries_max : head->entries));
    for (uint32_t i = 0; i < head->entries; i++)
        expect_same(image, head->kv_pages_offset_bytes + 4ull * entries[i].page_begin,
                    4ull * ((uint64_t)(lengths[i] + PAGE - 1) / PAGE));
}

static void expect_whole(const struct attnd_plan_image *image)
{
    const struct attnd_plan_head *head = (const void *)heap();
    const struct attnd_tile *first = (const void *)(heap() + head->tiles_offset_bytes);
    const struct attnd_entry *entries = (const void *)(heap() + head->entries_offset_bytes);
    uint32_t most_rows = 0;

    for (uint32_t i = 0; i < head->entries; i++)
        most_rows = entries[i].row_count > most_rows ? entries[i].row_count : most_rows;
    CHECK_EQUAL(image->sequence % 2, 0);
    CHECK_EQUAL(image->code, 0);
    CHECK_EQUAL(image->set_version, head->set_version);
    CHECK_EQUAL(image->page_size, PAGE);
    CHECK_EQUAL(image->items, attnd_plan_items(head, ATTND_RUN_ATTEND));
    CHECK_EQUAL(image->scratch_bytes, attnd_plan_scratch_bytes(head));
    CHECK_EQUAL(image->first_rows, head->tiles ? first->row_count * head->group : 0);
    CHECK_EQUAL(image->most_rows, most_rows * head->group);
    expect_same(image, 0, sizeof(*head));
    expect_same(image, head->entries_offset_bytes, head->entries * sizeof(struct attnd_entry));
    expect_same(image, head->tiles_offset_bytes, head->tiles * sizeof(struct attnd_tile));
    expect_same(image, head->merges_offset_bytes, head->merges * sizeof(struct attnd_merge));
    expect_same(image, head->merge_parts_offset_bytes, head->parts * sizeof(uint32_t));
    if (head->options & ATTND_OPTION_MASK)
        expect_same(image, head->mask_begin_offset_bytes, head->entries * sizeof(uint32_t));
    expect_lengths(image);
}

/* ---- sets ---- */

static void a_plan_that_was_never_set_says_so(void **state)
{
    (void)state;
    const struct attnd_plan_image *image = open_image();
    CHECK_EQUAL(image->code, ATTND_E_INVALID);
    CHECK_EQUAL(image->sequence % 2, 0);
    CHECK_EQUAL(image->plan_bytes, object->heap_bytes);
}

/* Of a key and its value 512 bytes, of a row 512 products and sums. */
static void an_image_says_how_long_tiles_take(void **state)
{
    (void)state;
    const struct attnd_pace *pace = &open_image()->pace;
    CHECK_EQUAL(pace->rows_per_tile, 128);
    CHECK_EQUAL(pace->granule, stage.service.queue->info.kv_granule);
    CHECK_EQUAL(pace->rows_step, 128);
    CHECK_EQUAL(pace->keys_item, attnd_plan_pace(object->plan).keys_item);
    CHECK(pace->read_ns > 511.0f && pace->read_ns < 513.0f);
    CHECK(pace->row_ns > 512.0f / 5201 && pace->row_ns < 512.0f / 5199);
    CHECK(pace->bytes_ns > 5.11f && pace->bytes_ns < 5.13f);
}

static void an_image_of_a_filled_plan_is_whole_at_once(void **state)
{
    const struct attnd_batch_view batch = batch_of(0);
    (void)state;
    CHECK_EQUAL(set(&batch, NULL), 0);
    expect_whole(open_image());
}

static void every_set_is_shown_and_changes_the_sequence_by_two(void **state)
{
    const struct attnd_batch_view apart = batch_of(0);
    const struct attnd_plan_image *image = open_image();
    const uint32_t before = image->sequence;
    (void)state;
    CHECK_EQUAL(set(&apart, NULL), 0);
    expect_whole(image);
    CHECK(((const struct attnd_plan_head *)(const void *)heap())->merges > 0);
    CHECK_EQUAL(image->sequence, before + 2);
    const uint64_t version = image->set_version;
    const struct attnd_batch_view alike = batch_of(100);
    CHECK_EQUAL(set(&alike, NULL), 0);
    CHECK(attnd_plan_shared_entries(object->plan) > 0);
    expect_whole(image);
    CHECK(image->set_version != version);
    CHECK_EQUAL(image->sequence, before + 4);
}

/* The planner's thread may be writing it: an advance of a plan that stays filled, for instance. */
static void a_plan_that_a_thread_plans_is_shown_when_that_is_done(void **state)
{
    const struct attnd_batch_view batch = batch_of(0);
    (void)state;
    CHECK_EQUAL(set(&batch, NULL), 0);
    object->planning = 1;
    const struct attnd_plan_image *image = open_image();
    CHECK_EQUAL(image->code, ATTND_E_INVALID);
    object->planning = 0;
    attnd_image_write(client.daemon, object, 0);
    expect_whole(image);
    const uint32_t before = image->sequence;
    attnd_image_write(client.daemon, object, 0); /* nothing is new */
    CHECK_EQUAL(image->sequence, before);
}

static void a_first_set_that_fails_says_why(void **state)
{
    const struct attnd_batch_view batch = batch_of(0);
    const struct attnd_plan_image *image = open_image();
    (void)state;
    scratch_bytes = 64;
    CHECK_EQUAL(set(&batch, NULL), -ATTND_E_NO_SPACE);
    CHECK_EQUAL(image->code, ATTND_E_NO_SPACE);
    scratch_bytes = UINT64_MAX;
    CHECK_EQUAL(set(&batch, NULL), 0);
    expect_whole(image);
}

static void a_set_that_fails_leaves_what_is_shown(void **state)
{
    const struct attnd_batch_view batch = batch_of(0), alike = batch_of(100);
    const struct attnd_plan_image *image = open_image();
    (void)state;
    CHECK_EQUAL(set(&batch, NULL), 0);
    scratch_bytes = 64;
    const uint32_t before = image->sequence;
    CHECK_EQUAL(set(&alike, NULL), -ATTND_E_NO_SPACE);
    CHECK_EQUAL(image->sequence, before);
    expect_whole(image);
    scratch_bytes = UINT64_MAX;
    CHECK_EQUAL(set(&alike, NULL), 0);
    expect_whole(image);
}

static void tables_have_the_sessions_names(void **state)
{
    struct attnd_batch_view batch = batch_of(0);
    const struct attnd_plan_image *image = open_image();
    const struct attnd_variant *variant =
        (const void *)(plan_in(image) + sizeof(struct attnd_plan_head));
    (void)state;
    batch.options = ATTND_OPTION_SINKS | ATTND_OPTION_MASK | ATTND_OPTION_HEAD_SCALES;
    batch.mask_indptr = mask_indptr;
    batch.variant = (struct attnd_variant)ATTND_VARIANT_INIT;
    batch.variant.sinks.memory = batch.variant.mask.memory = memory->index;
    batch.variant.kv_scales.memory = memory->index;
    batch.variant.kv_scales.offset_bytes = 512;
    CHECK_EQUAL(set(&batch, memory), 0);
    expect_whole(image);
    uint32_t handle = 1;
    while (client.daemon->memories[handle - 1] != memory)
        handle++;
    CHECK(handle != memory->index); /* or this could not tell the one from the other */
    CHECK_EQUAL(variant->sinks.memory, handle);
    CHECK_EQUAL(variant->mask.memory, handle);
    CHECK_EQUAL(variant->kv_scales.memory, handle);
    CHECK_EQUAL(variant->kv_scales.offset_bytes, 512);
    batch.options = 0;
    batch.mask_indptr = NULL;
    CHECK_EQUAL(set(&batch, NULL), 0);
    CHECK_EQUAL(variant->sinks.memory, ATTND_NONE);
    CHECK_EQUAL(variant->kv_scales.memory, ATTND_NONE);
}

/* ---- advances ---- */

/* Every request has @keys; two pages more for request 3, @ids. */
static int advance_to(int32_t keys, int32_t keys_of_3, const int32_t *ids)
{
    static const int32_t indptr[ENTRIES + 1] = {0, 0, 0, 0, 2, 2, 2, 2, 2};
    int32_t lengths[ENTRIES];
    for (uint32_t r = 0; r < ENTRIES; r++)
        lengths[r] = r == 3 ? keys_of_3 : keys;
    const struct attnd_advance_view view = {.entries = ENTRIES,
                                            .pages = ids ? 2 : 0,
                                            .kv_len = lengths,
                                            .page_indptr = ids ? indptr : NULL,
                                            .page_indices = ids};
    return advance(&view);
}

static void an_advance_shows_its_lengths_and_the_pages_they_reach(void **state)
{
    const int32_t more[2] = {1990, 1991};
    const struct attnd_batch_view batch = batch_of(0);
    const struct attnd_plan_image *image = open_image();
    (void)state;
    CHECK_EQUAL(set(&batch, NULL), 0);
    const uint32_t before = image->sequence, generation = image->generation;
    CHECK_EQUAL(advance_to(KEYS - 1, KEYS + 1, more), 0); /* the first of the two */
    expect_whole(image);
    CHECK_EQUAL(image->sequence, before + 2);
    CHECK(image->generation != generation);
    CHECK_EQUAL(advance_to(KEYS - 2, KEYS + PAGE + 1, NULL), 0); /* the second */
    expect_whole(image);
    CHECK_EQUAL(advance_to(1, 1, NULL), 0);
    expect_whole(image);
    CHECK_EQUAL(advance_to(KEYS, KEYS + 2 * PAGE, NULL), 0);
    expect_whole(image);
}

/* Its reserve is empty again, and other pages come there. */
static void an_advance_after_another_set_shows_its_own_pages(void **state)
{
    const int32_t before[2] = {1990, 1991}, after[2] = {1992, 1993};
    const struct attnd_batch_view batch = batch_of(0);
    const struct attnd_plan_image *image = open_image();
    (void)state;
    CHECK_EQUAL(set(&batch, NULL), 0);
    CHECK_EQUAL(advance_to(KEYS, KEYS + 2 * PAGE, before), 0);
    CHECK_EQUAL(set(&batch, NULL), 0);
    CHECK_EQUAL(advance_to(KEYS, KEYS + 2 * PAGE, after), 0);
    expect_whole(image);
}

static void an_advance_that_fails_shows_nothing(void **state)
{
    const struct attnd_batch_view batch = batch_of(0);
    const struct attnd_plan_image *image = open_image();
    (void)state;
    CHECK_EQUAL(set(&batch, NULL), 0);
    const uint32_t before = image->sequence;
    CHECK_EQUAL(advance_to(KEYS + 1, KEYS, NULL), -ATTND_E_RANGE); /* no page for it */
    CHECK_EQUAL(image->sequence, before);
    expect_whole(image);
}

static void lengths_of_a_placed_plan_come_with_those_of_other_levels(void **state)
{
    struct attnd_batch_view batch = batch_of(0);
    const struct attnd_plan_image *image = open_image();
    int32_t lengths[2 + ENTRIES];
    (void)state;
    batch.levels = 2;
    batch.entries = 2 + ENTRIES;
    batch.pages += 4;
    batch.level[1] = batch.level[0];
    batch.level[0] = (struct attnd_level_view){.entries = 2,
                                               .pages = 4,
                                               .qo_indptr = cascade_qo,
                                               .kv_indptr = cascade_kv,
                                               .kv_indices = cascade_pages,
                                               .kv_last_page_len = cascade_last};
    batch.options = ATTND_OPTION_ALIBI;
    batch.variant = (struct attnd_variant)ATTND_VARIANT_INIT;
    CHECK_EQUAL(set(&batch, NULL), 0);
    CHECK(attnd_plan_shape(object->plan)->flags & ATTND_PLAN_PLACED);
    expect_whole(image);
    for (uint32_t i = 0; i < 2 + ENTRIES; i++)
        lengths[i] = i < 2 ? PAGE + 3 + (int32_t)i : KEYS - (int32_t)i;
    const struct attnd_advance_view view = {.entries = 2 + ENTRIES, .kv_len = lengths};
    CHECK_EQUAL(advance(&view), 0);
    expect_whole(image);
}

static void an_advance_that_plans_again_shows_everything(void **state)
{
    const struct attnd_batch_view batch = batch_of(100);
    const struct attnd_plan_image *image = open_image();
    int32_t lengths[ENTRIES];
    (void)state;
    CHECK_EQUAL(set(&batch, NULL), 0);
    CHECK(attnd_plan_shared_entries(object->plan) > 0);
    const uint64_t version = image->set_version;
    for (uint32_t r = 0; r < ENTRIES; r++)
        lengths[r] = r == 5 ? 3 : KEYS;
    const struct attnd_advance_view view = {.entries = ENTRIES, .kv_len = lengths};
    CHECK(attnd_planobj_unshares(object, &view));
    CHECK_EQUAL(attnd_planobj_plan_advance(object, &view, ATTND_NONE, &fault), 0);
    attnd_planobj_write_advance(object, &view);
    attnd_planobj_fill(object);
    attnd_image_write(client.daemon, object, 0);
    CHECK(image->set_version != version);
    expect_whole(image);
}

/* ---- whose it is ---- */

static void nobody_else_can_write_it(void **state)
{
    char path[64];
    uint64_t bytes;
    int fd;
    (void)state;
    CHECK_EQUAL(attnd_image_open(client.daemon, object, &fd, &bytes, &fault), 0);
    CHECK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const int again = open(path, O_RDWR | O_CLOEXEC);
    CHECK(again >= 0);
    CHECK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
    CHECK(write(again, "x", 1) < 0);
    CHECK(ftruncate(again, 0) < 0);
    close(again);
}

static void it_is_paid_for_by_its_session(void **state)
{
    const uint64_t before = client.daemon->used[ATTND_QUOTA_DAEMON];
    uint64_t bytes, limit = stage.service.options.daemon_memory_max_bytes;
    int fd, again;
    (void)state;
    stage.service.options.daemon_memory_max_bytes = before;
    CHECK_EQUAL(attnd_image_open(client.daemon, object, &fd, &bytes, &fault), -ATTND_E_NO_MEMORY);
    CHECK_EQUAL(fault.field, ATTND_F_DAEMON_MEMORY);
    CHECK(object->image.address == NULL);
    CHECK_EQUAL(client.daemon->used[ATTND_QUOTA_DAEMON], before);
    stage.service.options.daemon_memory_max_bytes = limit;
    CHECK_EQUAL(attnd_image_open(client.daemon, object, &fd, &bytes, &fault), 0);
    CHECK_EQUAL(bytes % ATTND_PAGE_BYTES, 0);
    CHECK(bytes >= ATTND_IMAGE_PLAN_AT + object->heap_bytes);
    const uint64_t charged = client.daemon->used[ATTND_QUOTA_DAEMON];
    CHECK(charged >= before + bytes);
    CHECK_EQUAL(attnd_image_open(client.daemon, object, &again, &bytes, &fault), 0);
    CHECK_EQUAL(again, fd);
    CHECK_EQUAL(client.daemon->used[ATTND_QUOTA_DAEMON], charged);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_plan_that_was_never_set_says_so),
        CASE(an_image_says_how_long_tiles_take),
        CASE(an_image_of_a_filled_plan_is_whole_at_once),
        CASE(every_set_is_shown_and_changes_the_sequence_by_two),
        CASE(a_plan_that_a_thread_plans_is_shown_when_that_is_done),
        CASE(a_first_set_that_fails_says_why),
        CASE(a_set_that_fails_leaves_what_is_shown),
        CASE(tables_have_the_sessions_names),
        CASE(an_advance_shows_its_lengths_and_the_pages_they_reach),
        CASE(an_advance_after_another_set_shows_its_own_pages),
        CASE(an_advance_that_fails_shows_nothing),
        CASE(lengths_of_a_placed_plan_come_with_those_of_other_levels),
        CASE(an_advance_that_plans_again_shows_everything),
        CASE(nobody_else_can_write_it),
        CASE(it_is_paid_for_by_its_session),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
