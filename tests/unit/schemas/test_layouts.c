/*
 * test_layouts.c - nothing that two programs share has moved: every struct of abi.h and of the
 * public headers against tests/abi/layouts.inc, a table that was written once.
 *
 * A client and a daemon of two versions map the same bytes. The assertions beside the structs say
 * that a layout is what its author meant; this says that it is what was shipped. A field that is
 * gone does not compile here. schemas/README.md says how a layout is changed on purpose.
 */
#include "client/attnd.h"
#include "client/attnd_merge.h"
#include "schemas/abi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct shipped {
    const char *name;
    long long is[2], was[2]; /* offset and size; or size alone; or a number */
};

#define STRUCT(name, size) {"sizeof " #name, {(long long)sizeof(struct name)}, {size}},
#define FIELD(name, field, offset, size)                                                           \
    {#name "." #field,                                                                             \
     {(long long)offsetof(struct name, field), (long long)sizeof(((struct name *)NULL)->field)},   \
     {offset, size}},
#define NUMBER(name, value) {#name, {(long long)name}, {value}},

static const struct shipped shipped[] = {
#include "tests/abi/layouts.inc"
};

static void no_shipped_layout_and_no_number_has_moved(void **state)
{
    uint32_t moved = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(shipped) / sizeof(shipped[0]); i++) {
        const struct shipped *one = &shipped[i];
        if (one->is[0] == one->was[0] && one->is[1] == one->was[1])
            continue;
        print_error("%s: %lld, %lld; shipped as %lld, %lld\n", one->name, one->is[0], one->is[1],
                    one->was[0], one->was[1]);
        moved++;
    }
    assert_int_equal(moved, 0);
}

/* A table that lost its lines would agree with anything. */
static void the_table_has_the_structs_that_cross_a_process(void **state)
{
    static const char *const needed[] = {
        "sizeof attnd_sqe",         "sizeof attnd_cqe",        "sizeof attnd_command",
        "sizeof attnd_retire",      "sizeof attnd_queue_head", "sizeof attnd_plan_head",
        "sizeof attnd_tile",        "sizeof attnd_mailbox",    "sizeof attnd_batch",
        "sizeof attnd_worker_info", "sizeof attnd_completion", "ATTND_OP_RUN"};

    (void)state;
    for (size_t n = 0; n < sizeof(needed) / sizeof(needed[0]); n++) {
        uint32_t found = 0;
        for (size_t i = 0; i < sizeof(shipped) / sizeof(shipped[0]); i++)
            found += strcmp(shipped[i].name, needed[n]) == 0;
        if (found != 1)
            fail_msg("%s: %u times", needed[n], found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_shipped_layout_and_no_number_has_moved),
        cmocka_unit_test(the_table_has_the_structs_that_cross_a_process),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
