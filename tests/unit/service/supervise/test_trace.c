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

#define WORKERS 3u
#define RING (ATTND_TRACE_RECORDS / WORKERS)
#define EACH 300000u
#define ANSWER 1024u

static struct attnd_queue *queue;
static struct attnd_trace_record records[ANSWER];

static int setup(void **state)
{
    struct attnd_fault fault = {0};
    (void)state;
    int rc = attnd_queue_new(65536, 0, &queue, &fault);
    if (rc == 0)
        queue->info.tile_workers = WORKERS;
    return rc;
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
                                       .end_low = value ^ 0x5555,
                                       .session = value,
                                       .item = ~value,
                                       .track = (uint16_t)value,
                                       .kind = (uint8_t)(value % 3),
                                       .layer = (uint16_t)(value >> 16),
                                       .count = 1};
}

static void assert_is(const struct attnd_trace_record *record, uint32_t value)
{
    struct attnd_trace_record expected = record_of(value);
    expected.seal = record->seal;
    assert_memory_equal(record, &expected, sizeof(expected));
}

static void add(uint32_t worker, uint32_t value)
{
    const struct attnd_trace_record record = record_of(value);
    attnd_trace_add(queue->head, worker, WORKERS, &record);
}

static void records_are_wanted_for_as_long_as_somebody_asks(void **state)
{
    const uint64_t ms = 1000000, patience_ns = ATTND_TRACE_PATIENCE_MS * ms;
    const uint64_t around_ns = (UINT64_C(1) << 32) * ms; /* milliseconds come around, in 49 days */
    uint32_t next[WORKERS];

    (void)state;
    assert_false(attnd_trace_wanted(queue->head, 1));
    assert_false(attnd_trace_wanted(queue->head, around_ns - ms));
    attnd_trace_watch(queue, 1000 * ms, ATTND_TRACE_PATIENCE_MS, next);
    for (uint32_t w = 0; w < WORKERS; w++)
        assert_int_equal(next[w], 0);
    assert_true(attnd_trace_wanted(queue->head, 1000 * ms));
    assert_true(attnd_trace_wanted(queue->head, 999 * ms + patience_ns));
    assert_false(attnd_trace_wanted(queue->head, 1000 * ms + patience_ns));
    attnd_trace_watch(queue, 1500 * ms, 100, NULL); /* another reader, who cuts nothing short */
    assert_true(attnd_trace_wanted(queue->head, 999 * ms + patience_ns));
    attnd_trace_watch(queue, 5000 * ms, 100, NULL);
    assert_true(attnd_trace_wanted(queue->head, 5099 * ms));
    assert_false(attnd_trace_wanted(queue->head, 5100 * ms));
    attnd_trace_watch(queue, around_ns - patience_ns, ATTND_TRACE_PATIENCE_MS, next);
    assert_true(attnd_trace_wanted(queue->head, around_ns - ms));
    attnd_trace_watch(queue, around_ns - ms, ATTND_TRACE_PATIENCE_MS, next);
    assert_true(attnd_trace_wanted(queue->head, around_ns - ms));
    assert_true(attnd_trace_wanted(queue->head, around_ns + ms));
    assert_false(attnd_trace_wanted(queue->head, around_ns + patience_ns));
}

static void each_worker_has_records_of_its_own(void **state)
{
    uint32_t next[WORKERS] = {0};
    uint64_t lost;

    (void)state;
    for (uint32_t i = 0; i < 30; i++)
        add(i % WORKERS, 100 * (i % WORKERS) + i / WORKERS);
    assert_int_equal(attnd_trace_read(queue, next, records, ANSWER, &lost), 30);
    assert_int_equal(lost, 0);
    for (uint32_t i = 0; i < 30; i++)
        assert_is(&records[i], 100 * (i / 10) + i % 10);
    for (uint32_t w = 0; w < WORKERS; w++)
        assert_int_equal(next[w], 10);
    assert_int_equal(attnd_trace_read(queue, next, records, ANSWER, &lost), 0);
}

static void the_oldest_are_written_over_and_counted(void **state)
{
    uint32_t next[WORKERS] = {0}, value = 0;
    uint64_t lost, lost_all = 0;

    (void)state;
    for (uint32_t i = 0; i < RING + 100; i++)
        add(1, i);
    for (uint32_t got = 1; got > 0;) {
        got = attnd_trace_read(queue, next, records, ANSWER, &lost);
        lost_all += lost;
        value += (uint32_t)lost;
        for (uint32_t i = 0; i < got; i++, value++)
            assert_is(&records[i], value);
    }
    assert_int_equal(lost_all, 100);
    assert_int_equal(value, RING + 100);
    assert_int_equal(next[1], RING + 100);
    assert_int_equal(next[0], 0);
}

/* Words of it that are on their way, or that never come. */
static void a_record_that_is_not_whole_is_waited_for_but_not_for_ever(void **state)
{
    struct attnd_trace_record *ring = (void *)(queue->trace + 1);
    uint32_t next[WORKERS] = {0}, found = 0;
    uint64_t lost, lost_all = 0;

    (void)state;
    for (uint32_t field = 0; field < sizeof(*ring); field++) {
        add(0, field);
        struct attnd_trace_record *last = &ring[next[0]];
        uint8_t *byte = (uint8_t *)last + field;
        *byte ^= 0x40;
        assert_int_equal(attnd_trace_read(queue, next, records, ANSWER, &lost), 0);
        assert_int_equal(lost, 0);
        *byte ^= 0x40;
        assert_int_equal(attnd_trace_read(queue, next, records, ANSWER, &lost), 1);
        assert_is(&records[0], field);
    }
    add(0, 1);
    ring[next[0]].item ^= 1;
    for (uint32_t i = 0; i < 100; i++) {
        add(0, 1);
        found += attnd_trace_read(queue, next, records, ANSWER, &lost);
        lost_all += lost;
    }
    assert_int_equal(lost_all, 1);
    assert_int_equal(found, 100);
}

struct writer {
    pthread_t thread;
    uint32_t number;
};

static void *write_records(void *argument)
{
    const struct writer *writer = argument;
    for (uint32_t i = 0; i < EACH; i++)
        add(writer->number, writer->number * EACH + i);
    return NULL;
}

static uint64_t read_so_far(const uint32_t *next)
{
    uint64_t sum = 0;
    for (uint32_t w = 0; w < WORKERS; w++)
        sum += next[w];
    return sum;
}

static void times_are_told_by_the_hosts_clock(void **state)
{
    const struct attnd_trace_record record = {.begin_ns = 100, .end_low = 250};
    uint32_t next[WORKERS] = {0};
    uint64_t lost;

    (void)state;
    queue->trace->offset_ns = (UINT64_C(7) << 32) - 200; /* carries over the half */
    attnd_trace_add(queue->head, 0, WORKERS, &record);
    assert_int_equal(attnd_trace_read(queue, next, records, ANSWER, &lost), 1);
    assert_int_equal(records[0].begin_ns, (UINT64_C(7) << 32) - 100);
    assert_int_equal(attnd_trace_lasted_ns(&records[0]), 150);
}

static void records_of_threads_are_read_whole_while_they_write(void **state)
{
    struct writer writers[WORKERS];
    uint32_t next[WORKERS] = {0}, last[WORKERS] = {0}, seen[WORKERS] = {0};
    uint64_t lost, found_all = 0, lost_all = 0;

    (void)state;
    for (uint32_t w = 0; w < WORKERS; w++) {
        writers[w].number = w;
        assert_int_equal(pthread_create(&writers[w].thread, NULL, write_records, &writers[w]), 0);
    }
    while (read_so_far(next) < WORKERS * EACH) {
        const uint32_t found = attnd_trace_read(queue, next, records, ANSWER, &lost);
        for (uint32_t i = 0; i < found; i++) {
            const uint32_t value = records[i].session, w = value / EACH;
            assert_true(w < WORKERS);
            assert_is(&records[i], value);
            assert_true(!seen[w] || value > last[w]); /* in order, and each once */
            last[w] = value;
            seen[w] = 1;
        }
        found_all += found;
        lost_all += lost;
    }
    for (uint32_t w = 0; w < WORKERS; w++)
        assert_int_equal(pthread_join(writers[w].thread, NULL), 0);
    assert_int_equal(found_all + lost_all, WORKERS * EACH);
    assert_true(found_all > 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(records_are_wanted_for_as_long_as_somebody_asks),
        TEST(each_worker_has_records_of_its_own),
        TEST(the_oldest_are_written_over_and_counted),
        TEST(a_record_that_is_not_whole_is_waited_for_but_not_for_ever),
        TEST(times_are_told_by_the_hosts_clock),
        TEST(records_of_threads_are_read_whole_while_they_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
