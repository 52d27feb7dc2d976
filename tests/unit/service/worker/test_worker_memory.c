/*
 * test_worker_memory.c - a request for memory that takes long holds up nothing at all. The backend
 * is the test: to bring in memory SLOW takes until it is told to go on, and the memories of PIECES
 * come and go in that many pieces.
 */
#include "schemas/atomics.h"
#include "service/worker/memory.h"
#include "tests/support/harness/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define SLOW 7u
#define PIECES 3u
#define PIECES_BEGIN 20u /* memories from here on */
#define STEPS_MAX 64u
#define GONE 0u
#define ANSWERS_MAX 32u

static struct attnd_worker_memory memory;
static struct attnd_queue_head head;
static struct attnd_worker_port port = {.head = &head};

static struct {
    uint32_t slow_begun, slow_may_end;
    uint32_t unmaps;                    /* calls */
    uint32_t steps, step[STEPS_MAX];    /* memories, as pieces of them came; GONE: some went */
    uint32_t there[ATTND_MEMORIES_MAX]; /* pieces */
    uint32_t pinning[ATTND_PINNING];    /* as the queue segment said during the last piece */
    pthread_mutex_t lock;
    struct attnd_worker_message answer[ANSWERS_MAX];
    uint32_t answers;
} seen;

static void nap(void)
{
    const struct timespec time = {0, 100000};
    (void)nanosleep(&time, NULL);
}

/* ---- the backend ---- */

static int fake_map(struct attnd_backend *backend, uint32_t index,
                    const struct attnd_memory_source *source, struct attnd_fault *fault)
{
    (void)backend;
    for (uint32_t i = 0; i < ATTND_PINNING; i++)
        seen.pinning[i] = attnd_peek32(&head.pinning[i]);
    if (index >= PIECES_BEGIN) {
        CHECK(seen.steps < STEPS_MAX && seen.there[index] < PIECES);
        seen.step[seen.steps++] = index;
        return attnd_arrive32(&seen.there[index], 1) + 1 < PIECES ? ATTND_BACKEND_MORE : 0;
    }
    if (index == SLOW) {
        attnd_publish32(&seen.slow_begun, 1);
        while (!attnd_observe32(&seen.slow_may_end))
            nap();
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_MEMORY, 0, 3, 4);
    }
    return source->size_bytes ? 0 : -ATTND_E_RANGE;
}

static int fake_unmap(struct attnd_backend *backend, const uint32_t *indices, uint32_t count)
{
    int more = 0;
    (void)backend;
    for (uint32_t i = 0; i < count; i++)
        if (indices[i] >= PIECES_BEGIN && seen.there[indices[i]])
            more |= --seen.there[indices[i]] > 0;
    (void)attnd_arrive32(&seen.unmaps, 1);
    if (indices[0] >= PIECES_BEGIN)
        seen.step[seen.steps++] = GONE;
    return more ? ATTND_BACKEND_MORE : 0;
}

static const struct attnd_backend_ops ops = {.name = "fake", .map = fake_map, .unmap = fake_unmap};

static void answer(void *context, const struct attnd_worker_message *message)
{
    (void)context;
    (void)pthread_mutex_lock(&seen.lock);
    CHECK(seen.answers < ANSWERS_MAX);
    seen.answer[seen.answers++] = *message;
    (void)pthread_mutex_unlock(&seen.lock);
}

/* ---- the daemon ---- */

static void ask(uint32_t kind, uint32_t index, uint32_t memory_kind, int fd)
{
    const struct attnd_worker_message request = {
        .kind = kind,
        .index = index,
        .memory_kind = memory_kind,
        .size_bytes = index == SLOW || index >= PIECES_BEGIN ? ATTND_WORKER_LARGE_BYTES
                                                             : ATTND_WORKER_LARGE_BYTES - 1};
    attnd_worker_memory_serve(&memory, &request, fd);
}

/* Return: the place of the answer about it; waits until it is there. */
static uint32_t await(uint32_t kind, uint32_t index)
{
    for (;; nap()) {
        (void)pthread_mutex_lock(&seen.lock);
        uint32_t at = 0;
        while (at < seen.answers &&
               (seen.answer[at].kind != kind || seen.answer[at].index != index))
            at++;
        int there = at < seen.answers;
        (void)pthread_mutex_unlock(&seen.lock);
        if (there)
            return at;
    }
}

static void begin_slow(void)
{
    ask(ATTND_WORKER_MAP, SLOW, ATTND_KIND_HOST, -1);
    while (!attnd_observe32(&seen.slow_begun))
        nap();
}

static int setup(void **state)
{
    (void)state;
    memset(&seen, 0, sizeof(seen));
    (void)pthread_mutex_init(&seen.lock, NULL);
    memset(&memory, 0, sizeof(memory));
    memory.ops = &ops;
    memory.port = &port;
    memory.answer = answer;
    return attnd_worker_memory_start(&memory);
}

static int teardown(void **state)
{
    (void)state;
    attnd_publish32(&seen.slow_may_end, 1);
    while (!attnd_worker_memory_stop(&memory))
        nap();
    return 0;
}

static void nothing_that_is_done_at_once_waits_for_what_takes_long(void **state)
{
    (void)state;
    begin_slow();
    ask(ATTND_WORKER_MAP, 1, ATTND_KIND_DEVICE, -1);
    ask(ATTND_WORKER_MAP, 2, ATTND_KIND_POOL, -1);
    ask(ATTND_WORKER_MAP, 3, ATTND_KIND_HOST, -1);
    ask(ATTND_WORKER_MAP, 4, ATTND_KIND_IPC, -1);
    ask(ATTND_WORKER_UNMAP, 1, 0, -1);
    CHECK_EQUAL(seen.answers, 5); /* all of it before serve() returned */
    CHECK_EQUAL(seen.answer[4].index, 1);
    CHECK_EQUAL(seen.unmaps, 1);
}

static void what_is_about_one_memory_is_answered_in_order(void **state)
{
    (void)state;
    begin_slow();
    ask(ATTND_WORKER_UNMAP, SLOW, 0, -1); /* its session has died */
    CHECK_EQUAL(seen.answers, 0);
    attnd_publish32(&seen.slow_may_end, 1);
    uint32_t mapped = await(ATTND_WORKER_MAP, SLOW), unmapped = await(ATTND_WORKER_UNMAP, SLOW);
    CHECK(mapped < unmapped);
    CHECK_EQUAL(seen.answer[mapped].code, -ATTND_E_NO_MEMORY);
    CHECK_EQUAL(seen.answer[mapped].field, ATTND_F_MEMORY);
    CHECK_EQUAL(seen.answer[mapped].value, 3);
    CHECK_EQUAL(seen.answer[mapped].limit, 4);
}

static void what_goes_together_is_let_go_in_one_rest(void **state)
{
    (void)state;
    begin_slow();
    for (uint32_t i = 10; i < 20; i++)
        ask(ATTND_WORKER_MAP, i, i % 2 ? ATTND_KIND_IPC : ATTND_KIND_POOL, -1);
    for (uint32_t i = 10; i < 20; i++)
        ask(ATTND_WORKER_UNMAP, i, 0, -1);
    attnd_publish32(&seen.slow_may_end, 1);
    (void)await(ATTND_WORKER_UNMAP, 19);
    CHECK_EQUAL(seen.unmaps, 1);
}

static void let_slow_end(void)
{
    attnd_publish32(&seen.slow_may_end, 1);
    (void)await(ATTND_WORKER_MAP, SLOW);
}

static void large_memories_come_a_piece_of_each_in_turn(void **state)
{
    (void)state;
    begin_slow();
    for (uint32_t i = 0; i < 3; i++)
        ask(ATTND_WORKER_MAP, PIECES_BEGIN + i, ATTND_KIND_HOST, -1);
    let_slow_end();
    for (uint32_t i = 0; i < 3; i++)
        (void)await(ATTND_WORKER_MAP, PIECES_BEGIN + i);
    CHECK_EQUAL(seen.steps, 3 * PIECES);
    for (uint32_t i = 0; i < seen.steps; i++)
        CHECK_EQUAL(seen.step[i], PIECES_BEGIN + i % 3);
}

static void what_is_let_go_in_pieces_goes_whole_and_is_answered_once(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++)
        ask(ATTND_WORKER_MAP, PIECES_BEGIN + i, ATTND_KIND_HOST, -1);
    (void)await(ATTND_WORKER_MAP, PIECES_BEGIN + 1);
    begin_slow();
    for (uint32_t i = 0; i < 2; i++)
        ask(ATTND_WORKER_UNMAP, PIECES_BEGIN + i, 0, -1);
    let_slow_end();
    for (uint32_t i = 0; i < 2; i++) {
        (void)await(ATTND_WORKER_UNMAP, PIECES_BEGIN + i);
        CHECK_EQUAL(seen.there[PIECES_BEGIN + i], 0);
    }
    CHECK_EQUAL(seen.unmaps, PIECES); /* both in each rest */
    CHECK_EQUAL(seen.answers, 5);
}

/* So room that was given up is there before it is taken. */
static void what_is_let_go_has_every_other_turn(void **state)
{
    static const uint32_t turns[] = {PIECES_BEGIN,     PIECES_BEGIN,
                                     PIECES_BEGIN,     GONE,
                                     PIECES_BEGIN + 1, GONE,
                                     PIECES_BEGIN + 2, GONE,
                                     PIECES_BEGIN + 1, PIECES_BEGIN + 2,
                                     PIECES_BEGIN + 1, PIECES_BEGIN + 2};
    (void)state;
    ask(ATTND_WORKER_MAP, PIECES_BEGIN, ATTND_KIND_HOST, -1);
    (void)await(ATTND_WORKER_MAP, PIECES_BEGIN);
    begin_slow();
    ask(ATTND_WORKER_UNMAP, PIECES_BEGIN, 0, -1);
    ask(ATTND_WORKER_MAP, PIECES_BEGIN + 1, ATTND_KIND_HOST, -1);
    ask(ATTND_WORKER_MAP, PIECES_BEGIN + 2, ATTND_KIND_HOST, -1);
    let_slow_end();
    (void)await(ATTND_WORKER_MAP, PIECES_BEGIN + 2);
    CHECK_EQUAL(seen.steps, sizeof(turns) / sizeof(turns[0]));
    for (uint32_t i = 0; i < seen.steps; i++)
        CHECK_EQUAL(seen.step[i], turns[i]);
}

/* Its session has died: the rest of it is in nobody's interest. */
static void what_is_to_go_is_not_brought_in_any_further(void **state)
{
    (void)state;
    begin_slow();
    ask(ATTND_WORKER_MAP, PIECES_BEGIN, ATTND_KIND_HOST, -1);
    ask(ATTND_WORKER_UNMAP, PIECES_BEGIN, 0, -1);
    let_slow_end();
    uint32_t mapped = await(ATTND_WORKER_MAP, PIECES_BEGIN);
    CHECK(mapped < await(ATTND_WORKER_UNMAP, PIECES_BEGIN));
    CHECK_EQUAL(seen.answer[mapped].code, -ATTND_E_CANCELLED);
    CHECK_EQUAL(seen.steps, 1);
    CHECK_EQUAL(seen.step[0], GONE);
    ask(ATTND_WORKER_MAP, PIECES_BEGIN, ATTND_KIND_HOST, -1); /* another's, at its place */
    while (attnd_observe32(&seen.there[PIECES_BEGIN]) < PIECES)
        nap();
}

static void the_queue_segment_says_what_is_being_brought_in(void **state)
{
    (void)state;
    begin_slow();
    CHECK_EQUAL(attnd_observe32(&head.pinning[1]), 1 + SLOW);
    ask(ATTND_WORKER_MAP, 1, ATTND_KIND_HOST, -1); /* small, by the other thread */
    CHECK_EQUAL(seen.pinning[0], 1 + 1);
    CHECK_EQUAL(seen.pinning[1], 1 + SLOW);
    CHECK_EQUAL(attnd_observe32(&head.pinning[0]), 0);
    CHECK_EQUAL(attnd_observe32(&head.pinning[1]), 1 + SLOW);
    let_slow_end();
    CHECK_EQUAL(attnd_observe32(&head.pinning[1]), 0);
    ask(ATTND_WORKER_MAP, PIECES_BEGIN, ATTND_KIND_HOST, -1);
    (void)await(ATTND_WORKER_MAP, PIECES_BEGIN);
    CHECK_EQUAL(seen.pinning[1], 1 + PIECES_BEGIN);
}

static void a_descriptor_is_closed_whatever_becomes_of_it(void **state)
{
    int ends[2][2];
    char byte;
    (void)state;
    CHECK_EQUAL(pipe(ends[0]), 0);
    CHECK_EQUAL(pipe(ends[1]), 0);
    ask(ATTND_WORKER_MAP, 1, ATTND_KIND_DEVICE, ends[0][1]);
    CHECK_EQUAL(read(ends[0][0], &byte, 1), 0); /* nobody has the other end */
    begin_slow();
    ask(ATTND_WORKER_MAP, SLOW, ATTND_KIND_HOST, ends[1][1]); /* again: it stands in line */
    CHECK(!attnd_worker_memory_stop(&memory)); /* one is in work: nobody may destroy the backend */
    attnd_publish32(&seen.slow_may_end, 1);
    while (!attnd_worker_memory_stop(&memory))
        nap();
    CHECK_EQUAL(read(ends[1][0], &byte, 1), 0); /* it was not begun */
    close(ends[0][0]);
    close(ends[1][0]);
    CHECK_EQUAL(attnd_worker_memory_start(&memory), 0);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(nothing_that_is_done_at_once_waits_for_what_takes_long),
        CASE(what_is_about_one_memory_is_answered_in_order),
        CASE(what_goes_together_is_let_go_in_one_rest),
        CASE(large_memories_come_a_piece_of_each_in_turn),
        CASE(what_is_let_go_in_pieces_goes_whole_and_is_answered_once),
        CASE(what_is_let_go_has_every_other_turn),
        CASE(what_is_to_go_is_not_brought_in_any_further),
        CASE(the_queue_segment_says_what_is_being_brought_in),
        CASE(a_descriptor_is_closed_whatever_becomes_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
