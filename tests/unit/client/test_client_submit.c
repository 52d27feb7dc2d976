/* test_client_submit.c - what a call leaves in the slot and in the arena, and what it refuses. */
#include "client/attnd.h"
#include "client/attnd_tables.h"
#include "schemas/abi.h"
#include "schemas/atomics.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/fake_daemon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct pair {
    struct fake_daemon fake;
    struct attnd_session *session;
};

static void pair_open(struct pair *pair, uint32_t ring_entries, uint64_t arena_bytes)
{
    memset(pair, 0, sizeof(*pair));
    pair->fake.ring_entries = ring_entries;
    pair->fake.arena_bytes = arena_bytes;
    pair->session = fake_open(&pair->fake);
}

static void pair_close(struct pair *pair)
{
    attnd_close(pair->session);
    fake_stop(&pair->fake);
}

static struct attnd_sqe take(struct pair *pair)
{
    struct attnd_sqe sqe;
    CHECK_EQUAL(fake_take(&pair->fake, &sqe), 1);
    return sqe;
}

static struct attnd_fault last(void)
{
    struct attnd_fault fault;
    attnd_last_fault(&fault);
    return fault;
}

/* A batch of one request with @pages pages. */
struct small_batch {
    int32_t qo_indptr[2], kv_indptr[2], last_page_len[1];
    int32_t indices[4096];
    struct attnd_level level;
    struct attnd_batch batch;
};

static void small_batch_init(struct small_batch *small, int32_t pages)
{
    memset(small, 0, sizeof(*small));
    small->qo_indptr[1] = 3;
    small->kv_indptr[1] = pages;
    small->last_page_len[0] = 2;
    for (int32_t i = 0; i < pages; i++)
        small->indices[i] = 1000 + i;
    small->level = (struct attnd_level){.requests = 1,
                                        .qo_indptr = small->qo_indptr,
                                        .kv_indptr = small->kv_indptr,
                                        .kv_indices = small->indices,
                                        .kv_last_page_len = small->last_page_len};
    small->batch = (struct attnd_batch){.size = sizeof(small->batch),
                                        .heads_q = 8,
                                        .dtype = ATTND_DTYPE_BF16,
                                        .level = &small->level};
}

static void a_run_is_written_down_as_it_was_asked_for(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair, 8, 0);
    struct attnd_run_args run = {
        .size = sizeof(run), .layer = 3, .q = {1, 64}, .o = {2, 128}, .lse = {4, 12}};
    struct attnd_op op = {
        .user_data = 0x1122334455667788u, .lane = 63, .flags = ATTND_SKIP_SUCCESS, .timeout_us = 9};
    CHECK_OK(attnd_run(pair.session, 17, &run, &op));
    struct attnd_sqe want = {.opcode = ATTND_OP_RUN,
                             .flags = ATTND_OP_SKIP_SUCCESS,
                             .lane = 63,
                             .plan = 17,
                             .user_data = 0x1122334455667788u,
                             .u.run = {.layer = 3,
                                       .timeout_us = 9,
                                       .q_memory = 1,
                                       .o_memory = 2,
                                       .lse_memory = 4,
                                       .q_offset_bytes = 64,
                                       .o_offset_bytes = 128,
                                       .lse_offset_bytes = 12}};
    struct attnd_sqe got = take(&pair);
    CHECK(memcmp(&got, &want, sizeof(want)) == 0);
    pair_close(&pair);
}

static void an_append_and_a_cancel_are_written_down(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair, 8, 0);
    struct attnd_append_args append = {
        .size = sizeof(append), .layer = 2, .k = {1, 16}, .v = {1, 32}};
    struct attnd_op op = {.user_data = 5, .lane = 1, .timeout_us = 4};
    CHECK_OK(attnd_append(pair.session, 9, &append, &op));
    CHECK_OK(attnd_cancel(pair.session, 5));
    struct attnd_sqe want = {.opcode = ATTND_OP_APPEND,
                             .lane = 1,
                             .plan = 9,
                             .user_data = 5,
                             .u.append = {.layer = 2,
                                          .timeout_us = 4,
                                          .k_memory = 1,
                                          .v_memory = 1,
                                          .k_offset_bytes = 16,
                                          .v_offset_bytes = 32}};
    struct attnd_sqe got = take(&pair);
    CHECK(memcmp(&got, &want, sizeof(want)) == 0);
    want = (struct attnd_sqe){.opcode = ATTND_OP_CANCEL, .u.cancel.target_user_data = 5};
    got = take(&pair);
    CHECK(memcmp(&got, &want, sizeof(want)) == 0);
    pair_close(&pair);
}

static const int32_t *array_at(const struct pair *pair, uint64_t offset_bytes)
{
    CHECK_EQUAL(offset_bytes % ATTND_CACHE_LINE, 0);
    return (const int32_t *)(const void *)(pair->fake.arena + offset_bytes);
}

static Attnd__Batch *header_of(const struct pair *pair, const struct attnd_sqe *sqe)
{
    CHECK_EQUAL(sqe->opcode, ATTND_OP_PLAN_SET);
    CHECK(sqe->u.set.header_offset_bytes + sqe->u.set.header_bytes <= pair->fake.arena_bytes);
    Attnd__Batch *header = attnd__batch__unpack(NULL, sqe->u.set.header_bytes,
                                                pair->fake.arena + sqe->u.set.header_offset_bytes);
    CHECK(header != NULL);
    return header;
}

static void a_batch_lies_in_the_arena_with_its_arrays(void **state)
{
    (void)state;
    static const int32_t qo0[] = {0, 5}, kv0[] = {0, 2}, pages0[] = {7, 8}, last0[] = {16};
    static const int32_t qo1[] = {0, 1, 5}, kv1[] = {0, 0, 3}, pages1[] = {4, 5, 6},
                         last1[] = {0, 9};
    const struct attnd_level levels[] = {{1, qo0, kv0, pages0, last0},
                                         {2, qo1, kv1, pages1, last1}};
    const struct attnd_batch batch = {.size = sizeof(batch),
                                      .levels = 2,
                                      .heads_q = 32,
                                      .dtype = ATTND_DTYPE_FP16,
                                      .flags = ATTND_CAUSAL | ATTND_LSE_LN,
                                      .reserve_pages = 4,
                                      .sm_scale = 0.25f,
                                      .level = levels,
                                      .o = {.row = 4096, .head = 128},
                                      .lse = {.row = 0, .head = 5}};
    struct pair pair;
    pair_open(&pair, 8, 0);
    CHECK_OK(attnd_plan_set(pair.session, 3, &batch, &(struct attnd_op){.user_data = 1}));
    struct attnd_sqe sqe = take(&pair);
    CHECK_EQUAL(sqe.plan, 3);
    Attnd__Batch *header = header_of(&pair, &sqe);
    CHECK_EQUAL(header->rows, 5);
    CHECK_EQUAL(header->heads_q, 32);
    CHECK_EQUAL(header->dtype, ATTND_DTYPE_FP16);
    CHECK_EQUAL(header->flags, ATTND_BATCH_CAUSAL | ATTND_BATCH_LSE_LN);
    CHECK(header->has_sm_scale && header->sm_scale == 0.25f);
    CHECK_EQUAL(header->reserve_pages, 4);
    CHECK(header->q == NULL && header->k == NULL && header->v == NULL);
    CHECK(header->o && header->o->row == 4096 && header->o->head == 128);
    CHECK(header->lse && header->lse->row == 0 && header->lse->head == 5);
    CHECK_EQUAL(header->n_level, 2);
    for (size_t i = 0; i < 2; i++) {
        const Attnd__Level *level = header->level[i];
        uint32_t entries = levels[i].requests, pages = (uint32_t)levels[i].kv_indptr[entries];
        size_t indptr_bytes = (entries + 1) * sizeof(int32_t);
        CHECK_EQUAL(level->entries, entries);
        CHECK_EQUAL(level->pages, pages);
        CHECK(!memcmp(array_at(&pair, level->qo_indptr), levels[i].qo_indptr, indptr_bytes));
        CHECK(!memcmp(array_at(&pair, level->kv_indptr), levels[i].kv_indptr, indptr_bytes));
        CHECK(!memcmp(array_at(&pair, level->kv_indices), levels[i].kv_indices, pages * 4));
        CHECK(!memcmp(array_at(&pair, level->kv_last_page_len), levels[i].kv_last_page_len,
                      entries * 4));
    }
    attnd__batch__free_unpacked(header, NULL);
    pair_close(&pair);
}

/* Where all arrays lie in the tables, the block of the arena is the header alone. */
static void arrays_in_the_tables_are_named_where_they_lie(void **state)
{
    (void)state;
    const uint64_t tables_offset = 64 << 10;
    struct pair pair = {.fake = {.ring_entries = 8}};
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .arena_bytes = tables_offset,
                                         .tables_bytes = 1000,
                                         .socket_path = pair.fake.path};
    struct attnd_info info = {.size = sizeof(info)};
    struct small_batch small;
    uint64_t bytes;

    fake_listen(&pair.fake);
    CHECK_OK(attnd_open(&args, &pair.session));
    CHECK(attnd_observe32(&pair.fake.mapped)); /* A1 */
    int32_t *tables = attnd_tables_memory(pair.session, &bytes);
    CHECK_OK(attnd_info(pair.session, &info));
    CHECK_EQUAL(info.arena_bytes, tables_offset);
    CHECK_EQUAL(bytes, 1024);
    CHECK_EQUAL(pair.fake.arena_bytes, tables_offset + bytes);
    CHECK_EQUAL((uintptr_t)tables % ATTND_CACHE_LINE, 0);
    for (uint32_t i = 0; i < 256; i++)
        CHECK_EQUAL(tables[i], 0);

    small_batch_init(&small, 200);
    memcpy(tables + 3, small.indices, 200 * sizeof(*tables));
    memcpy(tables + 203, small.qo_indptr, sizeof(small.qo_indptr));
    memcpy(tables + 205, small.kv_indptr, sizeof(small.kv_indptr));
    memcpy(tables + 255, small.last_page_len, sizeof(small.last_page_len));
    small.level = (struct attnd_level){1, tables + 203, tables + 205, tables + 3, tables + 255};
    CHECK_OK(attnd_plan_set(pair.session, 1, &small.batch, &(struct attnd_op){0}));
    struct attnd_sqe sqe = take(&pair);
    Attnd__Batch *header = header_of(&pair, &sqe);
    CHECK_EQUAL(sqe.u.set.header_offset_bytes, 0);
    CHECK_EQUAL(header->level[0]->kv_indices, tables_offset + 3 * sizeof(*tables));
    CHECK_EQUAL(header->level[0]->qo_indptr, tables_offset + 203 * sizeof(*tables));
    CHECK_EQUAL(header->level[0]->kv_indptr, tables_offset + 205 * sizeof(*tables));
    CHECK_EQUAL(header->level[0]->kv_last_page_len, tables_offset + 255 * sizeof(*tables));
    attnd__batch__free_unpacked(header, NULL);

    small.level.qo_indptr = small.qo_indptr; /* one of them is copied */
    CHECK_OK(attnd_plan_set(pair.session, 1, &small.batch, &(struct attnd_op){0}));
    sqe = take(&pair);
    header = header_of(&pair, &sqe);
    CHECK_EQUAL(header->level[0]->kv_indices, tables_offset + 3 * sizeof(*tables));
    CHECK(!memcmp(array_at(&pair, header->level[0]->qo_indptr), small.qo_indptr,
                  sizeof(small.qo_indptr)));
    CHECK(header->level[0]->qo_indptr < tables_offset);
    attnd__batch__free_unpacked(header, NULL);
    pair_close(&pair);
}

static void a_batch_without_heads_and_type_gets_those_of_its_plan(void **state)
{
    (void)state;
    struct pair pair;
    struct small_batch small;
    uint32_t plan;
    pair_open(&pair, 8, 0);
    struct attnd_plan_args args = {.size = sizeof(args), .pool = 1, .heads_q = 24};
    CHECK_OK(attnd_plan_create(pair.session, &args, &plan));
    small_batch_init(&small, 1);
    small.batch.heads_q = 0;
    CHECK_OK(attnd_plan_set(pair.session, plan, &small.batch, &(struct attnd_op){0}));
    struct attnd_sqe sqe = take(&pair);
    Attnd__Batch *header = header_of(&pair, &sqe);
    CHECK_EQUAL(header->heads_q, 24);
    CHECK(!header->has_sm_scale && !header->has_reserve_pages);
    attnd__batch__free_unpacked(header, NULL);

    CHECK_ERROR(attnd_plan_set(pair.session, plan + 1, &small.batch, &(struct attnd_op){0}),
                ATTND_E_UNKNOWN);
    CHECK_OK(attnd_plan_destroy(pair.session, plan));
    CHECK_ERROR(attnd_plan_set(pair.session, plan, &small.batch, &(struct attnd_op){0}),
                ATTND_E_UNKNOWN);
    CHECK_EQUAL(last().field, ATTND_F_PLAN);
    pair_close(&pair);
}

static void an_advance_lies_in_the_arena_as_one_run_of_words(void **state)
{
    (void)state;
    static const int32_t kv_len[] = {10, 20}, indptr[] = {0, 0, 2}, indices[] = {41, 42};
    static const int32_t want[] = {10, 20, 0, 0, 2, 41, 42};
    struct attnd_advance advance = {.size = sizeof(advance), .entries = 2, .kv_len = kv_len};
    struct pair pair;
    pair_open(&pair, 8, 0);
    CHECK_OK(attnd_plan_advance(pair.session, 6, &advance, &(struct attnd_op){.lane = 2}));
    advance.page_indptr = indptr;
    advance.page_indices = indices;
    CHECK_OK(attnd_plan_advance(pair.session, 6, &advance, &(struct attnd_op){.lane = 2}));

    struct attnd_sqe sqe = take(&pair);
    CHECK_EQUAL(sqe.opcode, ATTND_OP_PLAN_ADVANCE);
    CHECK_EQUAL(sqe.u.advance.entries, 2);
    CHECK_EQUAL(sqe.u.advance.pages, 0);
    CHECK(!memcmp(array_at(&pair, sqe.u.advance.arrays_offset_bytes), kv_len, sizeof(kv_len)));
    sqe = take(&pair);
    CHECK_EQUAL(sqe.u.advance.pages, 2);
    CHECK(!memcmp(array_at(&pair, sqe.u.advance.arrays_offset_bytes), want, sizeof(want)));
    pair_close(&pair);
}

static void a_full_ring_says_full_and_has_room_after_one_was_taken(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair, 8, 0);
    for (uint64_t i = 0; i < 8; i++)
        CHECK_OK(attnd_cancel(pair.session, i));
    CHECK_ERROR(attnd_cancel(pair.session, 8), ATTND_E_FULL);
    CHECK_EQUAL(last().field, ATTND_F_RING_ENTRIES);
    struct small_batch small;
    small_batch_init(&small, 1);
    CHECK_ERROR(attnd_plan_set(pair.session, 1, &small.batch, &(struct attnd_op){0}), ATTND_E_FULL);
    CHECK_EQUAL(take(&pair).u.cancel.target_user_data, 0);
    CHECK_OK(attnd_cancel(pair.session, 8));
    for (uint64_t i = 1; i <= 8; i++)
        CHECK_EQUAL(take(&pair).u.cancel.target_user_data, i);
    pair_close(&pair);
}

static void a_full_ring_of_a_dead_daemon_says_disconnected(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair, 8, 0);
    fake_die(&pair.fake);
    int rc = 0;
    for (int i = 0; i < 9; i++)
        rc = attnd_cancel(pair.session, 1);
    CHECK_EQUAL(rc, -ATTND_E_DISCONNECTED);
    CHECK_ERROR(attnd_cancel(pair.session, 1), ATTND_E_DISCONNECTED);
    pair_close(&pair);
}

static void a_full_arena_says_full_and_too_large_a_batch_no_space(void **state)
{
    (void)state;
    struct pair pair;
    struct small_batch small;
    struct attnd_op op = {0};
    pair_open(&pair, 64, 8192);
    small_batch_init(&small, 1000); /* 4,000 bytes and header */
    CHECK_OK(attnd_plan_set(pair.session, 1, &small.batch, &op));
    CHECK_ERROR(attnd_plan_set(pair.session, 1, &small.batch, &op), ATTND_E_FULL);
    CHECK_EQUAL(last().field, ATTND_F_ARENA);
    take(&pair);
    CHECK_OK(attnd_plan_set(pair.session, 1, &small.batch, &op));

    small_batch_init(&small, 2048);
    CHECK_ERROR(attnd_plan_set(pair.session, 1, &small.batch, &op), ATTND_E_NO_SPACE);
    CHECK_EQUAL(last().field, ATTND_F_ARENA);
    CHECK(last().value > last().limit);
    CHECK_EQUAL(last().limit, 8192);
    pair_close(&pair);
}

static void a_thousand_batches_go_round_the_arena_unharmed(void **state)
{
    (void)state;
    struct pair pair;
    struct small_batch small;
    pair_open(&pair, 8, 16384);
    uint32_t sent = 0, seen = 0;
    while (seen < 1000) {
        small_batch_init(&small, (int32_t)(sent * 37 % 700));
        small.qo_indptr[1] = (int32_t)sent;
        int rc = attnd_plan_set(pair.session, 1, &small.batch, &(struct attnd_op){0});
        if (rc == 0) {
            sent++;
            continue;
        }
        CHECK_EQUAL(rc, -ATTND_E_FULL);
        struct attnd_sqe sqe;
        CHECK_EQUAL(attnd_consumer_peek(&pair.fake.sq, &sqe), 1);
        Attnd__Batch *header = header_of(&pair, &sqe);
        CHECK_EQUAL(header->rows, seen);
        CHECK_EQUAL(header->level[0]->pages, seen * 37 % 700);
        const int32_t *indices = array_at(&pair, header->level[0]->kv_indices);
        for (uint32_t i = 0; i < header->level[0]->pages; i++)
            CHECK_EQUAL(indices[i], 1000 + (int32_t)i);
        attnd__batch__free_unpacked(header, NULL);
        attnd_consumer_skip(&pair.fake.sq);
        seen++;
    }
    pair_close(&pair);
}

static void no_op_is_an_op_of_zeros(void **state)
{
    (void)state;
    struct pair pair;
    struct attnd_run_args run = {.size = sizeof(run)};
    struct attnd_append_args append = {.size = sizeof(append)};
    pair_open(&pair, 8, 0);
    CHECK_OK(attnd_run(pair.session, 1, &run, NULL));
    struct attnd_sqe sqe = take(&pair);
    CHECK_EQUAL(sqe.opcode, ATTND_OP_RUN);
    CHECK_EQUAL(sqe.lane | sqe.flags | sqe.user_data | sqe.u.run.timeout_us, 0);
    CHECK_OK(attnd_append(pair.session, 1, &append, NULL));
    sqe = take(&pair);
    CHECK_EQUAL(sqe.opcode, ATTND_OP_APPEND);
    CHECK_EQUAL(sqe.lane | sqe.flags | sqe.user_data | sqe.u.append.timeout_us, 0);
    pair_close(&pair);
}

static void what_a_slot_cannot_hold_is_refused_here(void **state)
{
    (void)state;
    struct pair pair;
    struct small_batch small;
    struct attnd_sqe sqe;
    struct attnd_run_args run = {.size = sizeof(run)};
    struct attnd_op op = {.lane = 64};
    pair_open(&pair, 8, 0);
    CHECK_ERROR(attnd_run(pair.session, 1, &run, &op), ATTND_E_RANGE);
    CHECK_EQUAL(last().field, ATTND_F_LANE);
    CHECK_EQUAL(last().value, 64);
    CHECK_EQUAL(last().limit, 63);
    op = (struct attnd_op){.flags = 0x100};
    CHECK_ERROR(attnd_run(pair.session, 1, &run, &op), ATTND_E_INVALID);
    CHECK_EQUAL(last().field, ATTND_F_FLAGS);
    CHECK_ERROR(attnd_run(pair.session, 1, NULL, &(struct attnd_op){0}), ATTND_E_INVALID);
    CHECK_ERROR(attnd_run(NULL, 1, &run, &(struct attnd_op){0}), ATTND_E_INVALID);

    op = (struct attnd_op){0};
    small_batch_init(&small, 2);
    small.level.qo_indptr = NULL;
    CHECK_ERROR(attnd_plan_set(pair.session, 1, &small.batch, &op), ATTND_E_INVALID);
    CHECK_EQUAL(last().field, ATTND_F_QO_INDPTR);
    small_batch_init(&small, 2);
    small.level.kv_indices = NULL;
    CHECK_ERROR(attnd_plan_set(pair.session, 1, &small.batch, &op), ATTND_E_INVALID);
    CHECK_EQUAL(last().field, ATTND_F_KV_INDICES);
    small_batch_init(&small, -1);
    CHECK_ERROR(attnd_plan_set(pair.session, 1, &small.batch, &op), ATTND_E_RANGE);
    CHECK_EQUAL(last().field, ATTND_F_KV_INDPTR);
    CHECK_EQUAL(last().index, 1);
    small_batch_init(&small, 2);
    small.batch.level = NULL;
    CHECK_ERROR(attnd_plan_set(pair.session, 1, &small.batch, &op), ATTND_E_INVALID);
    CHECK_EQUAL(last().field, ATTND_F_LEVELS);
    CHECK_EQUAL(last().limit, 0); /* which reads "is missing" */
    CHECK_ERROR(attnd_plan_set(pair.session, 1, NULL, &op), ATTND_E_INVALID);
    CHECK_EQUAL(last().field, ATTND_F_ARGS);
    CHECK_EQUAL(last().limit, 0);
    small_batch_init(&small, 0);
    small.batch.levels = 9;
    CHECK_ERROR(attnd_plan_set(pair.session, 1, &small.batch, &op), ATTND_E_RANGE);
    CHECK_EQUAL(last().field, ATTND_F_LEVELS);
    struct attnd_advance advance = {.size = sizeof(advance), .entries = 1};
    CHECK_ERROR(attnd_plan_advance(pair.session, 1, &advance, &op), ATTND_E_INVALID);
    CHECK_EQUAL(last().field, ATTND_F_KV_LEN);
    CHECK_EQUAL(fake_take(&pair.fake, &sqe), 0);
    pair_close(&pair);
}

static void lists_that_are_not_needed_may_be_absent(void **state)
{
    (void)state;
    struct pair pair;
    struct small_batch small;
    pair_open(&pair, 8, 0);
    small_batch_init(&small, 0);
    small.level.kv_indices = NULL;
    small.level.kv_last_page_len = NULL;
    CHECK_OK(attnd_plan_set(pair.session, 1, &small.batch, &(struct attnd_op){0}));
    struct attnd_sqe sqe = take(&pair);
    Attnd__Batch *header = header_of(&pair, &sqe);
    CHECK_EQUAL(header->level[0]->pages, 0);
    CHECK_EQUAL(array_at(&pair, header->level[0]->kv_last_page_len)[0], 0);
    attnd__batch__free_unpacked(header, NULL);
    pair_close(&pair);
}

static void a_shorter_struct_is_extended_and_a_longer_one_must_end_in_zeros(void **state)
{
    (void)state;
    struct pair pair;
    struct attnd_op op = {0};
    struct {
        struct attnd_run_args args;
        uint64_t tail;
    } newer = {.args = {.size = sizeof(newer), .layer = 1, .q = {1, 2}, .lse = {3, 4}}};
    pair_open(&pair, 8, 0);
    CHECK_OK(attnd_run(pair.session, 1, &newer.args, &op));
    CHECK_EQUAL(take(&pair).u.run.lse_memory, 3);
    newer.tail = 1;
    CHECK_ERROR(attnd_run(pair.session, 1, &newer.args, &op), ATTND_E_INVALID);
    CHECK_EQUAL(last().field, ATTND_F_SIZE);
    CHECK_EQUAL(last().value, sizeof(newer));
    CHECK_EQUAL(last().limit, sizeof(newer.args));

    newer.args.size = offsetof(struct attnd_run_args, lse);
    CHECK_OK(attnd_run(pair.session, 1, &newer.args, &op));
    struct attnd_sqe sqe = take(&pair);
    CHECK_EQUAL(sqe.u.run.q_memory, 1);
    CHECK_EQUAL(sqe.u.run.lse_memory, 0);
    newer.args.size = 0;
    CHECK_ERROR(attnd_run(pair.session, 1, &newer.args, &op), ATTND_E_INVALID);
    newer.args.size = 0xfffffff0u;
    CHECK_ERROR(attnd_run(pair.session, 1, &newer.args, &op), ATTND_E_INVALID);
    pair_close(&pair);
}

/* In the child: 0 if every call refuses and closing does no harm. */
static int use_in_child(struct attnd_session *session)
{
    struct attnd_completion completion;
    struct attnd_info info = {.size = sizeof(info)};
    struct attnd_run_args run = {.size = sizeof(run)};
    struct attnd_op op = {0};
    uint32_t memory;
    int refused = attnd_run(session, 1, &run, &op) == -ATTND_E_FORKED &&
                  attnd_cancel(session, 1) == -ATTND_E_FORKED &&
                  attnd_wait(session, &completion, 1, 0) == -ATTND_E_FORKED &&
                  attnd_arm(session) == -ATTND_E_FORKED && attnd_fd(session) == -ATTND_E_FORKED &&
                  attnd_info(session, &info) == -ATTND_E_FORKED &&
                  attnd_memory_create(session, 1, &memory, NULL) == -ATTND_E_FORKED &&
                  attnd_memory_address(session, 1) == NULL;
    attnd_close(session);
    return refused ? 0 : 1;
}

static void a_forked_child_is_refused_and_closes_without_harm(void **state)
{
    (void)state;
    struct pair pair;
    uint32_t memory;
    void *address;
    int status;
    pair_open(&pair, 8, 0);
    CHECK_OK(attnd_memory_create(pair.session, 100, &memory, &address));
    pid_t child = fork();
    if (child == 0)
        _exit(use_in_child(pair.session));
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);

    memset(address, 1, 100);
    CHECK_OK(attnd_cancel(pair.session, 4));
    CHECK_EQUAL(take(&pair).u.cancel.target_user_data, 4);
    CHECK_OK(attnd_memory_release(pair.session, memory)); /* the socket was not shut down */
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_is_written_down_as_it_was_asked_for),
        cmocka_unit_test(an_append_and_a_cancel_are_written_down),
        cmocka_unit_test(a_batch_lies_in_the_arena_with_its_arrays),
        cmocka_unit_test(arrays_in_the_tables_are_named_where_they_lie),
        cmocka_unit_test(a_batch_without_heads_and_type_gets_those_of_its_plan),
        cmocka_unit_test(an_advance_lies_in_the_arena_as_one_run_of_words),
        cmocka_unit_test(a_full_ring_says_full_and_has_room_after_one_was_taken),
        cmocka_unit_test(a_full_ring_of_a_dead_daemon_says_disconnected),
        cmocka_unit_test(a_full_arena_says_full_and_too_large_a_batch_no_space),
        cmocka_unit_test(a_thousand_batches_go_round_the_arena_unharmed),
        cmocka_unit_test(no_op_is_an_op_of_zeros),
        cmocka_unit_test(what_a_slot_cannot_hold_is_refused_here),
        cmocka_unit_test(lists_that_are_not_needed_may_be_absent),
        cmocka_unit_test(a_shorter_struct_is_extended_and_a_longer_one_must_end_in_zeros),
        cmocka_unit_test(a_forked_child_is_refused_and_closes_without_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
