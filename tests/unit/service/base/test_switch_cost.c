/* test_switch_cost.c - what is said of the price of no MPS. */
#include "service/base/switch_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void expect(int64_t switch_cost_us, const char *end)
{
    static const char begin[] =
        "processes take turns on the GPU: each run in an engine's stream costs two switches";
    char text[ATTND_SWITCH_COST_BYTES];

    assert_ptr_equal(attnd_switch_cost_text(switch_cost_us, text, sizeof(text)), text);
    assert_memory_equal(text, begin, sizeof(begin) - 1);
    assert_string_equal(text + sizeof(begin) - 1, end);
}

static void the_price_is_what_was_measured_or_no_number(void **state)
{
    (void)state;
    expect(287, ", 287 us as measured here");
    expect(UINT32_MAX, ", 4294967295 us as measured here"); /* the longest number has room */
    expect(0, ", which have not been measured here");
    expect(ATTND_SWITCH_COST_UNTOLD, " (measured at the service's start; none runs here)");
}

static void a_text_without_room_is_cut_off(void **state)
{
    char text[10];
    (void)state;
    assert_string_equal(attnd_switch_cost_text(287, text, sizeof(text)), "processes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_price_is_what_was_measured_or_no_number),
        cmocka_unit_test(a_text_without_room_is_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
