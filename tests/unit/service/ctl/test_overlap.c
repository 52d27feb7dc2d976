/* test_overlap.c - how long sessions were in one layer at once. */
#include "service/ctl/overlap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct attnd_trace_record item(uint32_t session, uint16_t layer, uint64_t begin_ns,
                                      uint64_t end_ns)
{
    return (struct attnd_trace_record){
        .begin_ns = begin_ns, .end_low = (uint32_t)end_ns, .session = session, .layer = layer};
}

static void expect(struct attnd_trace_record *records, size_t count, uint64_t busy_ns,
                   uint64_t overlap_ns)
{
    struct attnctl_overlap overlap;

    assert_int_equal(attnctl_overlap(records, count, &overlap), 0);
    assert_int_equal(overlap.busy_ns, busy_ns);
    assert_int_equal(overlap.overlap_ns, overlap_ns);
}

static void nothing_recorded_is_no_time(void **state)
{
    (void)state;
    expect(NULL, 0, 0, 0);
}

static void two_sessions_in_a_layer_overlap_while_both_are_there(void **state)
{
    struct attnd_trace_record records[] = {item(2, 0, 160, 300), item(1, 0, 100, 200)};

    (void)state;
    expect(records, 2, 200, 40);
}

static void sessions_in_different_layers_do_not_overlap(void **state)
{
    struct attnd_trace_record records[] = {item(1, 0, 100, 200), item(2, 1, 100, 200)};

    (void)state;
    expect(records, 2, 200, 0);
}

static void items_of_one_session_do_not_overlap_and_overlaps_count_once(void **state)
{
    struct attnd_trace_record records[] = {item(1, 3, 100, 200), item(1, 3, 100, 150),
                                           item(1, 3, 120, 260)};

    (void)state;
    expect(records, 3, 160, 0);
}

static void who_comes_when_another_leaves_does_not_meet_it(void **state)
{
    struct attnd_trace_record records[] = {item(1, 0, 100, 200), item(2, 0, 200, 300)};

    (void)state;
    expect(records, 2, 200, 0);
}

static void a_gap_between_items_belongs_to_nobody(void **state)
{
    struct attnd_trace_record records[] = {item(1, 0, 100, 200), item(1, 0, 900, 1000),
                                           item(2, 0, 150, 950)};

    (void)state;
    expect(records, 3, 900, 100);
}

static void three_sessions_overlap_once(void **state)
{
    struct attnd_trace_record records[] = {item(1, 0, 0, 100), item(2, 0, 0, 100),
                                           item(3, 0, 50, 100), item(3, 7, 100, 110)};

    (void)state;
    expect(records, 4, 110, 100);
}

static void times_beyond_32_bits_are_whole(void **state)
{
    const uint64_t late_ns = 7ull << 32;
    struct attnd_trace_record records[] = {item(1, 0, late_ns - 50, late_ns + 50),
                                           item(2, 0, late_ns, late_ns + 100)};

    (void)state;
    expect(records, 2, 150, 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_recorded_is_no_time),
        cmocka_unit_test(two_sessions_in_a_layer_overlap_while_both_are_there),
        cmocka_unit_test(sessions_in_different_layers_do_not_overlap),
        cmocka_unit_test(items_of_one_session_do_not_overlap_and_overlaps_count_once),
        cmocka_unit_test(who_comes_when_another_leaves_does_not_meet_it),
        cmocka_unit_test(a_gap_between_items_belongs_to_nobody),
        cmocka_unit_test(three_sessions_overlap_once),
        cmocka_unit_test(times_beyond_32_bits_are_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
