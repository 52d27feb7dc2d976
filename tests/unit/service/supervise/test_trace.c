/* test_trace.c - what a worker records is read once and whole, or it is counted as lost. */
#include "persistent/trace.h"
#include "service/supervise/trace.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define WRITERS 3u
#define EACH 300000u
#define ANSWER 1024u

static struct attnd_queue *queue;
static struct attnd_trace_record records[ANSWER];

static int setup(void **state)
{
    struct attnd_fault fault = {0};
    (void)state;
    return attnd_queue_new(65536, 0, &queue, &fault);
}

static int teardown(void **state)
{
    (void)state;
    attnd_queue_free(queue);
    return 0;
}

/* All fields follow from one number. */
static struct attnd_trace_record record_of(uint32_t value)
{
    return (struct attnd_trace_record){.begin_ns = UINT64_C(1000003) * value,
                                       .lasted_ns = value ^ 0x5555,
                                       .session = value,
                                       .item = ~value,
                                       .track = (uint16_t)value,
                                       .kind = (uint8_t)(value % 3),
                                       .layer = (uint16_t)(value >> 16),
                                       .count = 1};
}

static void assert_is(const struct attnd_trace_record *record, uint32_t value, uint32_t number)
{
    struct attnd_trace_record expected = record_of(value);
    expected.number = number;
    assert_memory_equal(record, &expected, sizeof(expected));
}

static void records_are_wanted_for_as_long_as_somebody_asks(void **state)
{
    (void)state;
    assert_false(attnd_trace_wanted(queue->head, 0));
    assert_int_equal(attnd_trace_watch(queue, 1000), 0);
    assert_true(attnd_trace_wanted(queue->head, 1000));
    assert_true(attnd_trace_wanted(queue->head, 999 + ATTND_TRACE_PATIENCE_NS));
    assert_false(attnd_trace_wanted(queue->head, 1000 + ATTND_TRACE_PATIENCE_NS));
}

static void the_oldest_are_written_over_and_counted(void **state)
{
    const uint32_t all = ATTND_TRACE_RECORDS + 100;
    uint64_t next = 0, lost, lost_all = 0;
    uint32_t value = 0;

    (void)state;
    for (uint32_t i = 0; i < all; i++) {
        const struct attnd_trace_record record = record_of(i);
        attnd_trace_add(queue->head, &record);
    }
    assert_int_equal(attnd_trace_watch(queue, 1), all);
    for (uint32_t got = 1; got > 0;) {
        got = attnd_trace_read(queue, &next, records, ANSWER, &lost);
        lost_all += lost;
        value += (uint32_t)lost;
        for (uint32_t i = 0; i < got; i++, value++)
            assert_is(&records[i], value, value + 1);
    }
    assert_int_equal(lost_all, 100);
    assert_int_equal(value, all);
    assert_int_equal(next, all);
}

/* Its records have begun at 0 again. */
static void a_reader_of_another_worker_begins_at_its_first(void **state)
{
    const struct attnd_trace_record record = record_of(7);
    uint64_t next = 1000, lost = 1;

    (void)state;
    attnd_trace_add(queue->head, &record);
    assert_int_equal(attnd_trace_read(queue, &next, records, ANSWER, &lost), 1);
    assert_int_equal(lost, 0);
    assert_int_equal(next, 1);
    assert_is(&records[0], 7, 1);
}

/* A writer that never ends its record. */
static void a_record_that_is_not_complete_is_waited_for_but_not_for_ever(void **state)
{
    const struct attnd_trace_record record = record_of(1);
    uint64_t next = 0, lost, lost_all = 0;

    (void)state;
    (void)attnd_take64(&queue->trace->next, 1);
    attnd_trace_add(queue->head, &record);
    assert_int_equal(attnd_trace_read(queue, &next, records, ANSWER, &lost), 0);
    assert_int_equal(next, 0);
    assert_int_equal(lost, 0);
    uint32_t found = 0;
    for (uint32_t i = 0; i < ANSWER; i++) {
        attnd_trace_add(queue->head, &record);
        found += attnd_trace_read(queue, &next, records, ANSWER, &lost);
        lost_all += lost;
    }
    assert_int_equal(lost_all, 1);
    assert_int_equal(found, 1 + ANSWER);
}

struct writer {
    pthread_t thread;
    uint32_t number;
};

static void *write_records(void *argument)
{
    const struct writer *writer = argument;
    for (uint32_t i = 0; i < EACH; i++) {
        const struct attnd_trace_record record = record_of(writer->number * EACH + i);
        attnd_trace_add(queue->head, &record);
    }
    return NULL;
}

static void records_of_threads_are_read_whole_while_they_write(void **state)
{
    struct writer writers[WRITERS];
    uint32_t *seen = calloc(WRITERS * EACH, sizeof(*seen)), last[WRITERS] = {0};
    uint64_t next = 0, lost, found_all = 0, lost_all = 0;

    (void)state;
    assert_non_null(seen);
    for (uint32_t w = 0; w < WRITERS; w++) {
        writers[w].number = w;
        assert_int_equal(pthread_create(&writers[w].thread, NULL, write_records, &writers[w]), 0);
    }
    while (next < WRITERS * EACH) {
        const uint32_t found = attnd_trace_read(queue, &next, records, ANSWER, &lost);
        for (uint32_t i = 0; i < found; i++) {
            const uint32_t value = records[i].session;
            assert_true(value < WRITERS * EACH);
            assert_is(&records[i], value, records[i].number);
            assert_int_equal(seen[value]++, 0);
            assert_true(value >= last[value / EACH]); /* a thread's own are in order */
            last[value / EACH] = value;
        }
        found_all += found;
        lost_all += lost;
    }
    for (uint32_t w = 0; w < WRITERS; w++)
        assert_int_equal(pthread_join(writers[w].thread, NULL), 0);
    assert_int_equal(found_all + lost_all, WRITERS * EACH);
    assert_true(found_all > 0);
    free(seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(records_are_wanted_for_as_long_as_somebody_asks, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_oldest_are_written_over_and_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(a_reader_of_another_worker_begins_at_its_first, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            a_record_that_is_not_complete_is_waited_for_but_not_for_ever, setup, teardown),
        cmocka_unit_test_setup_teardown(records_of_threads_are_read_whole_while_they_write, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
