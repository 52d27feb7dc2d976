/*
 * test_prefix_ops.c - operations on the prefix tree between two played clients: what is refused,
 * what waits and for how long, and where the pages of a match lie.
 */
#include "service/prefix/prefix.h"
#include "service/sched/complete.h"
#include "service/sched/prefix_step.h"
#include "service/sched/results.h"
#include "service/sched/scheduler.h"
#include "tests/support/rigs/sched_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RING_ENTRIES 8u
#define KEYS 6u
#define PART 256u      /* blocks of a part of a match */
#define MANY_KEYS 300u /* more than that */

static struct stage_client other; /* holds no page */
static uint32_t own, others;      /* handles on the one namespace */

static int setup(void **state)
{
    const struct attnd_tree_space_args args = {1, STAGE_PAGES, 0, 0};
    struct attnd_fault fault = {0};
    (void)state;
    (void)sched_rig_begin(RING_ENTRIES);
    stage_connect(&stage, &other, RING_ENTRIES, 1);
    CHECK_EQUAL(attnd_prefix_space_open(client.daemon, 1, &args, &own, &fault), 0);
    const uint8_t *token =
        attnd_prefix_space_share(attnd_client_prefix(client.daemon, own), 1, &fault);
    CHECK(token != NULL);
    CHECK_EQUAL(attnd_prefix_space_attach(other.daemon, token, &others, &fault), 0);
    return 0;
}

/* The first @blocks keys of the one prompt, and pages from 0 on, at the arena's beginning. */
static struct attnd_sqe prefix_op(struct stage_client *by, uint8_t opcode, uint32_t blocks)
{
    struct attnd_block_key keys[MANY_KEYS] = {{{0}}};
    int has_pages = opcode == ATTND_OP_PREFIX_MATCH || opcode == ATTND_OP_PREFIX_PUBLISH;
    CHECK(blocks <= MANY_KEYS);
    for (uint32_t i = 0; i < blocks; i++)
        keys[i] = (struct attnd_block_key){{i + 1, 77}};
    memcpy(by->arena, keys, blocks * sizeof(keys[0]));
    for (uint32_t i = 0; i < blocks; i++) {
        int32_t page = (int32_t)i;
        memcpy(by->arena + blocks * sizeof(keys[0]) + i * sizeof(page), &page, sizeof(page));
    }
    return (struct attnd_sqe){.opcode = opcode,
                              .plan = by == &client ? own : others,
                              .user_data = opcode,
                              .u.prefix = {.blocks = blocks, .pages = has_pages ? blocks : 0}};
}

static struct attnd_cqe ask(struct stage_client *by, struct attnd_sqe sqe, int code)
{
    CHECK_EQUAL(stage_submit(by, &sqe), 0);
    (void)stage_sweep(&stage);
    return stage_expect(by, sqe.user_data, code);
}

static struct attnd_sqe waiting_match(uint32_t blocks, uint64_t user_data)
{
    struct attnd_sqe sqe = prefix_op(&other, ATTND_OP_PREFIX_MATCH, blocks);
    sqe.u.prefix.flags = ATTND_PREFIX_WAIT;
    sqe.user_data = user_data;
    return sqe;
}

static enum attnd_prefix_stop stop_of(const struct attnd_cqe *cqe)
{
    return (enum attnd_prefix_stop)(cqe->index >> 32);
}

static int32_t result_word(const struct stage_client *by, uint64_t place)
{
    const char *words =
        (const char *)by->daemon->completion.address + by->daemon->results_offset_bytes;
    int32_t word;
    memcpy(&word, words + place % ATTND_RESULT_WORDS * sizeof(word), sizeof(word));
    return word;
}

static void what_lies_outside_is_refused_and_named(void **state)
{
    struct attnd_sqe sqe = prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, 2);
    (void)state;
#define REFUSED(change, error, names)                                                              \
    do {                                                                                           \
        struct attnd_sqe wrong = sqe;                                                              \
        wrong.change;                                                                              \
        CHECK_EQUAL(ask(&client, wrong, -(error)).field, names);                                   \
    } while (0)
    REFUSED(u.prefix.arrays_offset_bytes = UINT64_MAX - 7, ATTND_E_RANGE, ATTND_F_ARENA);
    REFUSED(u.prefix.arrays_offset_bytes = 65536 - 32, ATTND_E_RANGE, ATTND_F_ARENA);
    REFUSED(u.prefix.arrays_offset_bytes = 4, ATTND_E_INVALID, ATTND_F_ARENA);
    REFUSED(u.prefix.blocks = ATTND_PREFIX_BLOCKS_MAX + 1, ATTND_E_RANGE, ATTND_F_BLOCKS);
    REFUSED(u.prefix.blocks = UINT32_MAX, ATTND_E_RANGE, ATTND_F_BLOCKS);
    REFUSED(u.prefix.pages = 3, ATTND_E_INVALID, ATTND_F_PAGES);
    REFUSED(u.prefix.flags = ATTND_PREFIX_WAIT, ATTND_E_INVALID, ATTND_F_FLAGS);
    REFUSED(u.prefix.zero[2] = 1, ATTND_E_INVALID, ATTND_F_RESERVED);
    REFUSED(plan = 9, ATTND_E_UNKNOWN, ATTND_F_PREFIX);
    REFUSED(opcode = ATTND_OP_LAST + 1, ATTND_E_INVALID, ATTND_F_OPCODE);
    int32_t outside = (int32_t)STAGE_PAGES;
    memcpy(client.arena + 2 * sizeof(struct attnd_block_key) + 4, &outside, sizeof(outside));
    CHECK_EQUAL(ask(&client, sqe, -ATTND_E_RANGE).index, 1);
    struct attnd_sqe silent = prefix_op(&client, ATTND_OP_PREFIX_MATCH, 1);
    silent.flags = ATTND_OP_SKIP_SUCCESS;
    CHECK_EQUAL(ask(&client, silent, -ATTND_E_INVALID).field, ATTND_F_FLAGS);
    CHECK_EQUAL(attnd_client_prefix(client.daemon, own)->in_flight, 0);
}

static void what_is_not_leased_cannot_be_published(void **state)
{
    (void)state;
    struct attnd_cqe cqe =
        ask(&other, prefix_op(&other, ATTND_OP_PREFIX_PUBLISH, 1), -ATTND_E_NOT_LEASED);
    CHECK_EQUAL(cqe.field, ATTND_F_PAGES);
    CHECK_EQUAL(attnd_tree_pages(stage.pool->prefix->tree), 0);
}

static void a_match_tells_pages_beside_its_completion(void **state)
{
    (void)state;
    CHECK_EQUAL(ask(&client, prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, 4), 0).value, 4);
    struct attnd_cqe cqe = ask(&other, prefix_op(&other, ATTND_OP_PREFIX_MATCH, KEYS), 0);
    CHECK_EQUAL((uint32_t)cqe.index, 4);
    CHECK_EQUAL(stop_of(&cqe), ATTND_PREFIX_STOP_MISSING);
    CHECK_EQUAL(cqe.words, 4);
    CHECK_EQUAL(cqe.value, 4); /* all by the other session */
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQUAL(result_word(&other, (uint64_t)cqe.limit + i), i);
        CHECK_EQUAL(stage.pool->leases[i], 3);
    }
}

static void a_match_that_waits_leaves_its_lane_and_goes_on_when_woken(void **state)
{
    (void)state;
    (void)ask(&client, prefix_op(&client, ATTND_OP_PREFIX_CLAIM, KEYS), 0);
    struct attnd_sqe wait = waiting_match(KEYS, 42);
    CHECK_EQUAL(stage_submit(&other, &wait), 0);
    (void)stage_sweep(&stage);
    stage_expect_none(&other);
    /* The lane goes on, and so does the wait while the prompt is published in parts. */
    CHECK_EQUAL(ask(&other, prefix_op(&other, ATTND_OP_PREFIX_CLAIM, 1), 0).index,
                (uint64_t)ATTND_PREFIX_STOP_CLAIMED << 32);
    (void)ask(&client, prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, 3), 0);
    stage_expect_none(&other);
    CHECK_EQUAL(stage.pool->leases[0], 3); /* it holds what it has found */
    (void)ask(&client, prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, KEYS), 0);
    struct attnd_cqe cqe = stage_expect(&other, 42, 0);
    CHECK_EQUAL((uint32_t)cqe.index, KEYS);
    CHECK_EQUAL(stop_of(&cqe), ATTND_PREFIX_STOP_END);
    CHECK_EQUAL(cqe.words, KEYS);
    CHECK_EQUAL(attnd_client_prefix(other.daemon, others)->in_flight, 0);
}

/* Keys [@first, @first + @count) of the prompt. */
static void claim(uint32_t first, uint32_t count)
{
    struct attnd_sqe sqe = prefix_op(&client, ATTND_OP_PREFIX_CLAIM, first + count);

    memmove(client.arena, client.arena + first * sizeof(struct attnd_block_key),
            count * sizeof(struct attnd_block_key));
    sqe.u.prefix.blocks = count;
    CHECK_EQUAL(ask(&client, sqe, 0).index, count); /* all of them, and it was their end */
}

/* Claims of all would not fit. Those at the end make the match wait once more if it comes to them
 * before the publish does, which goes in parts, too. */
static void a_match_that_is_woken_for_many_blocks_finds_them_in_parts(void **state)
{
    (void)state;
    claim(0, 1);
    claim(PART, MANY_KEYS - PART);
    struct attnd_sqe wait = waiting_match(MANY_KEYS, 42);
    CHECK_EQUAL(stage_submit(&other, &wait), 0);
    (void)stage_sweep(&stage);
    stage_expect_none(&other);
    (void)ask(&client, prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, MANY_KEYS), 0);
    struct attnd_cqe cqe = stage_expect(&other, 42, 0);
    CHECK_EQUAL((uint32_t)cqe.index, MANY_KEYS);
    CHECK_EQUAL(stop_of(&cqe), ATTND_PREFIX_STOP_END);
    for (uint32_t i = 0; i < MANY_KEYS; i++)
        CHECK_EQUAL(result_word(&other, (uint64_t)cqe.limit + i), i);
}

/* The last block of a chain of two parts has a page of the first. */
static void a_publish_that_is_refused_has_published_nothing(void **state)
{
    struct attnd_sqe sqe = prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, MANY_KEYS);
    const size_t last = MANY_KEYS * sizeof(struct attnd_block_key) + (MANY_KEYS - 1) * 4;
    const int32_t page = 3, its_own = MANY_KEYS - 1;

    (void)state;
    memcpy(client.arena + last, &page, sizeof(page));
    struct attnd_cqe cqe = ask(&client, sqe, -ATTND_E_INVALID);
    CHECK_EQUAL(cqe.field, ATTND_F_KEYS);
    CHECK_EQUAL(cqe.index, MANY_KEYS - 1);
    CHECK_EQUAL(attnd_tree_pages(stage.pool->prefix->tree), 0);
    memcpy(client.arena + last, &its_own, sizeof(its_own));
    CHECK_EQUAL(ask(&client, sqe, 0).value, MANY_KEYS);
}

/* A publish of two parts that is next in its lane, behind a run. */
static struct attnd_sched_op *publish_behind_a_run(struct attnd_run **run)
{
    const uint32_t plan = sched_rig_filled_plan();

    sched_rig_submit(stage_run(plan, 0, 1));
    sched_rig_submit(prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, MANY_KEYS));
    (void)stage_sweep(&stage);
    *run = sched_rig_must_command();
    return client.daemon->lanes->lane[0].head->next;
}

static void end(struct attnd_run *run)
{
    stage_retire(&stage, run, 0);
    (void)stage_sweep(&stage);
    (void)stage_expect(&client, 1, 0);
}

static void a_long_publish_is_looked_at_in_parts_before_it_begins(void **state)
{
    struct attnd_run *run;
    struct attnd_sched_op *op = publish_behind_a_run(&run);
    (void)state;
    CHECK_EQUAL(attnd_prefix_step(op), ATTND_STEP_MORE);
    CHECK_EQUAL(op->checked, PART);
    CHECK_EQUAL(attnd_tree_pages(stage.pool->prefix->tree), 0);
    end(run);
    CHECK_EQUAL(stage_expect(&client, ATTND_OP_PREFIX_PUBLISH, 0).value, MANY_KEYS);
}

/* Behind the part that was looked at somebody publishes a page of it. */
static void others_may_publish_while_a_publish_is_looked_at(void **state)
{
    static const struct attnd_block_key key = {{1000, 77}};
    const int32_t page = 0;
    struct attnd_prefix_handle *handle = attnd_client_prefix(client.daemon, own);
    const struct attnd_tree_chain chain = {.space = handle->space, .count = 1, .keys = &key};
    struct attnd_tree *tree = stage.pool->prefix->tree;
    struct attnd_tree_result result;
    struct attnd_run *run;
    struct attnd_sched_op *op = publish_behind_a_run(&run);
    (void)state;
    CHECK_EQUAL(attnd_prefix_step(op), ATTND_STEP_MORE);
    CHECK_EQUAL(attnd_tree_publish(tree, &handle->owner, &chain, &page, &result), 0);
    CHECK_EQUAL(result.blocks, 1); /* what was looked at is nobody's yet */
    end(run);
    const struct attnd_cqe cqe = stage_expect(&client, ATTND_OP_PREFIX_PUBLISH, -ATTND_E_INVALID);
    CHECK_EQUAL(cqe.field, ATTND_F_KEYS);
    CHECK_EQUAL(cqe.index, 0);
    CHECK_EQUAL(attnd_tree_pages(tree), 1); /* of the publish, nothing */
}

static void waiting_leaves_room_in_the_ring(void **state)
{
    (void)state;
    (void)ask(&client, prefix_op(&client, ATTND_OP_PREFIX_CLAIM, KEYS), 0);
    for (uint32_t i = 0; i < RING_ENTRIES / 4; i++) {
        struct attnd_sqe wait = waiting_match(KEYS, 100 + i);
        CHECK_EQUAL(stage_submit(&other, &wait), 0);
        (void)stage_sweep(&stage);
        stage_expect_none(&other);
    }
    struct attnd_cqe cqe = ask(&other, waiting_match(KEYS, 200), 0); /* one too many: told so */
    CHECK_EQUAL(stop_of(&cqe), ATTND_PREFIX_STOP_CLAIMED);
    (void)ask(&client, prefix_op(&client, ATTND_OP_PREFIX_ABANDON, KEYS), 0);
    for (uint32_t i = 0; i < RING_ENTRIES / 4; i++) {
        CHECK_EQUAL(stage_completion(&other, &cqe), 1);
        CHECK_EQUAL(stop_of(&cqe), ATTND_PREFIX_STOP_ABANDONED);
    }
}

static void a_session_that_ends_wakes_others_and_waits_for_nothing(void **state)
{
    (void)state;
    (void)ask(&client, prefix_op(&client, ATTND_OP_PREFIX_CLAIM, 2), 0);
    struct attnd_sqe wait = waiting_match(2, 1);
    CHECK_EQUAL(stage_submit(&other, &wait), 0);
    (void)stage_sweep(&stage);
    attnd_client_end(client.daemon);
    (void)stage_sweep(&stage);
    struct attnd_cqe cqe = stage_expect(&other, 1, 0);
    CHECK_EQUAL(stop_of(&cqe), ATTND_PREFIX_STOP_ABANDONED);
    /* And one that waits itself: nothing of it is left. */
    stage_connect(&stage, &client, RING_ENTRIES, 1);
    struct attnd_fault fault = {0};
    const uint8_t *token =
        attnd_prefix_space_share(attnd_client_prefix(other.daemon, others), 1, &fault);
    CHECK_EQUAL(attnd_prefix_space_attach(client.daemon, token, &own, &fault), 0);
    (void)ask(&client, prefix_op(&client, ATTND_OP_PREFIX_CLAIM, 2), 0);
    CHECK_EQUAL(stage_submit(&other, &wait), 0);
    (void)stage_sweep(&stage);
    attnd_client_end(other.daemon);
    (void)stage_sweep(&stage);
    CHECK_EQUAL(ask(&client, prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, 2), 0).value, 2);
    CHECK_EQUAL(stage.pool->leases[0], 2);
}

static void a_publish_behind_an_append_takes_effect_after_it(void **state)
{
    (void)state;
    uint32_t plan = sched_rig_filled_plan();
    sched_rig_submit(stage_append(plan, 0, 5));
    struct attnd_sqe publish = prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, 1);
    CHECK_EQUAL(stage_submit(&client, &publish), 0);
    (void)stage_sweep(&stage);
    struct attnd_run *run = sched_rig_must_command();
    memset(client.arena, 0xff, 64); /* the slot is free, so the arena is the client's again */
    CHECK_EQUAL(attnd_tree_pages(stage.pool->prefix->tree), 0);
    stage_retire(&stage, run, 0);
    (void)stage_sweep(&stage);
    stage_expect(&client, 5, 0);
    CHECK_EQUAL(stage_expect(&client, ATTND_OP_PREFIX_PUBLISH, 0).value, 1);
    sched_rig_submit(stage_append(plan, 0, 6)); /* immutable from now on */
    (void)stage_sweep(&stage);
    stage_expect(&client, 6, -ATTND_E_SHARED_PAGE);
}

static void a_publish_fails_with_an_append_that_its_client_has_not_read_of(void **state)
{
    (void)state;
    uint32_t plan = sched_rig_filled_plan();
    sched_rig_submit(stage_append(plan, 0, 5));
    struct attnd_sqe publish = prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, 1);
    CHECK_EQUAL(stage_submit(&client, &publish), 0);
    (void)stage_sweep(&stage);
    stage_retire(&stage, sched_rig_must_command(), -ATTND_E_RANGE);
    (void)stage_sweep(&stage);
    /* One that was submitted meanwhile is no better, another lane's is none of its business. */
    CHECK_EQUAL(stage_submit(&client, &publish), 0);
    publish.lane = 1;
    publish.user_data = 8;
    CHECK_EQUAL(stage_submit(&client, &publish), 0);
    (void)stage_sweep(&stage);
    stage_expect(&client, 5, -ATTND_E_RANGE);
    CHECK_EQUAL(stage_expect(&client, ATTND_OP_PREFIX_PUBLISH, -ATTND_E_RANGE).field,
                ATTND_F_PAGES);
    (void)stage_expect(&client, ATTND_OP_PREFIX_PUBLISH, -ATTND_E_RANGE);
    CHECK_EQUAL(stage_expect(&client, 8, 0).value, 1);
    /* It knows now, and says so all the same. */
    CHECK_EQUAL(ask(&client, prefix_op(&client, ATTND_OP_PREFIX_PUBLISH, 2), 0).value, 1);
}

/* ---- the ring of results ---- */

#define HALF (ATTND_RESULT_WORDS / 2)

static void put(int32_t *words, uint32_t count, int32_t value)
{
    const struct attnd_sqe sqe = {.opcode = ATTND_OP_PREFIX_MATCH};
    struct attnd_sched_op *op = attnd_op_new(client.daemon->lanes, &sqe);
    for (uint32_t i = 0; i < count; i++)
        words[i] = value + (int32_t)i;
    CHECK(attnd_results_room(client.daemon->lanes, count));
    attnd_results_put(op, words, count);
    attnd_complete(op, 0, 0);
}

static void take(uint32_t count, int32_t value)
{
    struct attnd_cqe cqe;
    CHECK_EQUAL(stage_completion(&client, &cqe), 1);
    CHECK_EQUAL(cqe.words, count);
    for (uint32_t i = 0; i < count; i++)
        CHECK_EQUAL(result_word(&client, (uint64_t)cqe.limit + i), value + (int32_t)i);
}

static void results_stay_until_the_client_has_read_their_completion(void **state)
{
    (void)state;
    int32_t *words = calloc(HALF, sizeof(*words));
    struct attnd_client_lanes *session = client.daemon->lanes;
    for (int32_t round = 0; round < 5; round++) { /* across the ring's end, at another place each */
        put(words, HALF, 1000 * round);
        put(words, HALF - 5, 7000 * round);
        CHECK(!attnd_results_room(session, 6));
        CHECK(attnd_results_room(session, 5));
        take(HALF, 1000 * round);
        CHECK(attnd_results_room(session, HALF));
        CHECK(!attnd_results_room(session, HALF + 6));
        take(HALF - 5, 7000 * round);
    }
    free(words);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, sched_rig_teardown)
    const struct CMUnitTest tests[] = {
        CASE(what_lies_outside_is_refused_and_named),
        CASE(what_is_not_leased_cannot_be_published),
        CASE(a_match_tells_pages_beside_its_completion),
        CASE(a_match_that_waits_leaves_its_lane_and_goes_on_when_woken),
        CASE(a_match_that_is_woken_for_many_blocks_finds_them_in_parts),
        CASE(a_publish_that_is_refused_has_published_nothing),
        CASE(a_long_publish_is_looked_at_in_parts_before_it_begins),
        CASE(others_may_publish_while_a_publish_is_looked_at),
        CASE(waiting_leaves_room_in_the_ring),
        CASE(a_session_that_ends_wakes_others_and_waits_for_nothing),
        CASE(a_publish_behind_an_append_takes_effect_after_it),
        CASE(a_publish_fails_with_an_append_that_its_client_has_not_read_of),
        CASE(results_stay_until_the_client_has_read_their_completion),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
