/*
 * test_queue.c - what the segment keeps and what it does not when one worker follows another, while
 * something of the first is still there and writes.
 */
#include "schemas/atomics.h"
#include "service/supervise/queue.h"
#include "tests/support/harness/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define HEAP_BYTES 65536u

static struct attnd_queue *queue;
static struct attnd_shm old; /* as a worker has it mapped */

static int setup(void **state)
{
    struct attnd_fault fault = {0};
    (void)state;
    CHECK_EQUAL(attnd_queue_new(HEAP_BYTES, 0, &queue, &fault), 0);
    const int fds[] = {queue->rings_fd, queue->heap_fd};
    const uint64_t bytes[] = {queue->segment.size_bytes - queue->heap_bytes, queue->heap_bytes};
    CHECK_EQUAL(attnd_shm_map_joined(fds, bytes, &old, &fault), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    attnd_shm_unmap(&old);
    attnd_queue_free(queue);
    return 0;
}

static struct attnd_queue_head *old_head(void)
{
    return old.address;
}

static void lose(void)
{
    struct attnd_fault fault = {0};
    attnd_queue_abandon(queue);
    CHECK_EQUAL(attnd_queue_renew(queue, &fault), 0);
}

/* A retire that was made by something that is left of the old worker. */
static void retire_from_the_grave(void)
{
    struct attnd_queue_head *head = old_head();
    struct attnd_retire *ring = (void *)((char *)old.address + head->retires_offset_bytes);
    uint32_t tail = attnd_peek32(&head->retire_tail);
    ring[tail % head->ring_entries] = (struct attnd_retire){.kind = ATTND_COMMAND_RUN, .run = 7};
    attnd_publish32(&head->retire_tail, tail + 1);
    attnd_publish32(&head->command_head, attnd_peek32(&head->command_tail) + 5);
}

static void a_dead_workers_answers_reach_nobody(void **state)
{
    struct attnd_retire retire;
    (void)state;
    attnd_queue_abandon(queue);
    retire_from_the_grave();
    CHECK_EQUAL(attnd_consumer_pop(&queue->retires, &retire), 0); /* nobody is there yet */
    struct attnd_fault fault = {0};
    CHECK_EQUAL(attnd_queue_renew(queue, &fault), 0);
    retire_from_the_grave();
    CHECK_EQUAL(attnd_consumer_pop(&queue->retires, &retire), 0);
    CHECK_EQUAL(attnd_peek32(&queue->head->retire_tail), 0);
}

static void rates_outlive_the_worker_that_measured_them(void **state)
{
    const struct attnd_rates rates = {5200, 60, 61, 4400, ATTND_RATES_MEASURED};
    (void)state;
    CHECK_EQUAL(queue->head->rates.source, ATTND_RATES_NONE);
    attnd_queue_rates(queue, &rates);
    CHECK_EQUAL(memcmp(&old_head()->rates, &rates, sizeof(rates)), 0);
    old_head()->rates.worker_gflops = 7; /* what it writes once it is dead is nobody's */
    lose();
    CHECK_EQUAL(memcmp(&queue->head->rates, &rates, sizeof(rates)), 0);
}

static void a_switch_cost_that_was_measured_is_told_to_the_next_worker(void **state)
{
    (void)state;
    CHECK_EQUAL(queue->head->switch_cost_us, 0);
    queue->switch_cost_us = 287; /* as it was when the worker was ready */
    lose();
    CHECK_EQUAL(queue->head->switch_cost_us, 287);
}

static void a_switch_cost_in_which_a_worker_died_is_not_measured_again(void **state)
{
    (void)state;
    old_head()->switch_cost_us = ATTND_SWITCH_COST_UNKNOWN; /* what a worker says when it begins */
    lose();
    CHECK_EQUAL(queue->head->switch_cost_us, ATTND_SWITCH_COST_UNKNOWN);
}

static void a_dead_worker_sees_no_command_of_the_next(void **state)
{
    struct attnd_command command = {.kind = ATTND_COMMAND_RUN, .run = 3};
    (void)state;
    lose();
    retire_from_the_grave();
    for (uint32_t i = 0; i < ATTND_QUEUE_ENTRIES; i++) /* its head is not the new ring's */
        CHECK_EQUAL(attnd_queue_push(queue, &command), 0);
    CHECK_EQUAL(attnd_peek32(&queue->head->command_tail), ATTND_QUEUE_ENTRIES);
    CHECK_EQUAL(attnd_peek32(&old_head()->command_tail), 0);
    CHECK_EQUAL(attnd_peek32(&queue->head->park), ATTND_PARK_NO);
}

static void what_is_left_of_a_dead_worker_is_told_to_end(void **state)
{
    (void)state;
    CHECK_EQUAL(attnd_peek32(&old_head()->park), ATTND_PARK_NO);
    attnd_queue_abandon(queue);
    CHECK_EQUAL(attnd_observe32(&old_head()->park), ATTND_PARK_OVER);
    struct attnd_fault fault = {0};
    CHECK_EQUAL(attnd_queue_renew(queue, &fault), 0);
    CHECK_EQUAL(attnd_observe32(&old_head()->park), ATTND_PARK_OVER);
}

static void heap_prepared_runs_and_mailboxes_go_on(void **state)
{
    (void)state;
    uint64_t at = attnd_heap_alloc(queue, 4096);
    CHECK(at != 0);
    const struct attnd_queue_head *head = queue->head;
    const void *heap = attnd_heap_at(queue, at);
    memset(attnd_heap_at(queue, at), 0x5a, 4096);
    queue->runs[ATTND_QUEUE_RUNS + 9].session = 11;
    queue->mailboxes[5] = (struct attnd_mailbox_slot){.memory = 2, .session = 11, .runs = 1234};
    lose();
    CHECK(queue->head == head && attnd_heap_at(queue, at) == heap);
    CHECK_EQUAL(((const uint8_t *)heap)[4095], 0x5a);
    CHECK_EQUAL(((const uint8_t *)old.address)[at], 0x5a); /* one heap */
    CHECK_EQUAL(queue->runs[ATTND_QUEUE_RUNS + 9].session, 11);
    CHECK_EQUAL(queue->mailboxes[5].runs, 1234);
    CHECK_EQUAL(queue->mailboxes[4].memory, ATTND_NONE);
    struct attnd_mailbox_slot *slots = (void *)((char *)old.address + head->mailboxes_offset);
    slots[5].runs = 1; /* late */
    CHECK_EQUAL(queue->mailboxes[5].runs, 1234);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_dead_workers_answers_reach_nobody),
        CASE(a_dead_worker_sees_no_command_of_the_next),
        CASE(rates_outlive_the_worker_that_measured_them),
        CASE(a_switch_cost_that_was_measured_is_told_to_the_next_worker),
        CASE(a_switch_cost_in_which_a_worker_died_is_not_measured_again),
        CASE(what_is_left_of_a_dead_worker_is_told_to_end),
        CASE(heap_prepared_runs_and_mailboxes_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
