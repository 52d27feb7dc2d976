/*
 * test_abi.c - what the compile-time assertions of abi.h cannot say: the bytes of a slot, the
 * numbers on the wire, and that no two writers share a cache line.
 */
#include "schemas/abi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void a_submitted_run_has_these_bytes(void **state)
{
    (void)state;
    const struct attnd_sqe sqe = {
        .opcode = ATTND_OP_RUN,
        .flags = ATTND_OP_SKIP_SUCCESS,
        .lane = 0x0302,
        .plan = 0x07060504,
        .user_data = 0x0f0e0d0c0b0a0908,
        .u.run = {.layer = 0x13121110,
                  .timeout_us = 0x17161514,
                  .q_memory = 0x1b1a1918,
                  .o_memory = 0x1f1e1d1c,
                  .q_offset_bytes = 0x2726252423222120,
                  .o_offset_bytes = 0x2f2e2d2c2b2a2928,
                  .lse_offset_bytes = 0x3736353433323130,
                  .lse_memory = 0x3b3a3938},
    };
    uint8_t image[ATTND_SLOT_BYTES];
    for (uint8_t i = 0; i < ATTND_SLOT_BYTES; i++)
        image[i] = i;
    image[0] = 4;
    image[1] = 1;
    memset(image + 60, 0, 4);
    assert_memory_equal(&sqe, image, sizeof(image));
}

static void a_completion_has_these_bytes(void **state)
{
    (void)state;
    const struct attnd_cqe cqe = {
        .user_data = 0x0706050403020100,
        .code = -2,
        .opcode = 12,
        .lane = 0x0f0e,
        .field = 0x13121110,
        .index = 0x1f1e1d1c1b1a1918,
        .value = 0x2726252423222120,
        .limit = 0x2f2e2d2c2b2a2928,
        .begin_ns = 0x3736353433323130,
        .end_ns = 0x3f3e3d3c3b3a3938,
    };
    uint8_t image[ATTND_SLOT_BYTES];
    for (uint8_t i = 0; i < ATTND_SLOT_BYTES; i++)
        image[i] = i;
    memset(image + 8, 0xff, 4);
    image[8] = 0xfe;
    image[13] = 0;
    memset(image + 20, 0, 4);
    assert_memory_equal(&cqe, image, sizeof(image));
}

static void the_numbers_on_the_wire_stay(void **state)
{
    (void)state;
    assert_int_equal(ATTND_OP_PLAN_SET, 1);
    assert_int_equal(ATTND_OP_PLAN_ADVANCE, 2);
    assert_int_equal(ATTND_OP_APPEND, 3);
    assert_int_equal(ATTND_OP_RUN, 4);
    assert_int_equal(ATTND_OP_CANCEL, 5);
    assert_int_equal(ATTND_OP_MERGE, 12);
    assert_int_equal(ATTND_FP16, 1);
    assert_int_equal(ATTND_BF16, 2);
    assert_int_equal(ATTND_FP8_E4M3, 3);
    assert_int_equal(ATTND_FP8_E5M2, 4);
    assert_int_equal(ATTND_NONE, UINT32_MAX);
    assert_int_equal(ATTND_KV_OPEN, UINT32_MAX);
}

static void expect_own_lines(const size_t *offsets, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(offsets[i] / ATTND_CACHE_LINE, offsets[j] / ATTND_CACHE_LINE);
}

static void words_of_different_writers_share_no_cache_line(void **state)
{
    (void)state;
    const size_t submit[] = {
        offsetof(struct attnd_submit_head, magic), offsetof(struct attnd_submit_head, sq_tail),
        offsetof(struct attnd_submit_head, cq_head), offsetof(struct attnd_submit_head, cq_need)};
    const size_t complete[] = {offsetof(struct attnd_complete_head, magic),
                               offsetof(struct attnd_complete_head, sq_head),
                               offsetof(struct attnd_complete_head, sq_need),
                               offsetof(struct attnd_complete_head, cq_tail)};
    const size_t queue[] = {offsetof(struct attnd_queue_head, magic),
                            offsetof(struct attnd_queue_head, command_tail),
                            offsetof(struct attnd_queue_head, command_head),
                            offsetof(struct attnd_queue_head, command_need),
                            offsetof(struct attnd_queue_head, retire_tail),
                            offsetof(struct attnd_queue_head, retire_head),
                            offsetof(struct attnd_queue_head, retire_need),
                            offsetof(struct attnd_queue_head, park),
                            offsetof(struct attnd_queue_head, info)};
    expect_own_lines(submit, sizeof(submit) / sizeof(submit[0]));
    expect_own_lines(complete, sizeof(complete) / sizeof(complete[0]));
    expect_own_lines(queue, sizeof(queue) / sizeof(queue[0]));
}

static void every_operation_fills_its_slot(void **state)
{
    (void)state;
    struct attnd_sqe sqe;
    assert_int_equal(sizeof(sqe.u), 48);
    assert_int_equal(sizeof(sqe.u.run), sizeof(sqe.u));
    assert_int_equal(sizeof(sqe.u.append), sizeof(sqe.u));
    assert_int_equal(sizeof(sqe.u.set), sizeof(sqe.u));
    assert_int_equal(sizeof(sqe.u.advance), sizeof(sqe.u));
    assert_int_equal(sizeof(sqe.u.cancel), sizeof(sqe.u));
    assert_int_equal(sizeof(sqe.u.merge), sizeof(sqe.u));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_submitted_run_has_these_bytes),
        cmocka_unit_test(a_completion_has_these_bytes),
        cmocka_unit_test(the_numbers_on_the_wire_stay),
        cmocka_unit_test(words_of_different_writers_share_no_cache_line),
        cmocka_unit_test(every_operation_fills_its_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
