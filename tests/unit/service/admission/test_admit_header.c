/*
 * test_admit_header.c - the header of a batch: scalars, strides, counts, offsets, and headers that
 * are none.
 */
#include "ipc/admit_alloc.h"
#include "schemas/attnd.pb-c.h"
#include "service/admission/admit.h"
#include "tests/support/oracle/batch_check.h"
#include "tests/support/rigs/admit_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The header as a message, to change it; put back with pack(). */
static Attnd__Batch *unpack(void)
{
    Attnd__Batch *message = attnd__batch__unpack(
        NULL, admit_rig.at.header_bytes, admit_rig.arena + admit_rig.at.header_offset_bytes);
    assert_non_null(message);
    return message;
}

static void pack(Attnd__Batch *message)
{
    assert_true(attnd__batch__get_packed_size(message) < ATTND_PAGE_BYTES);
    admit_rig.at.header_bytes =
        (uint32_t)attnd__batch__pack(message, admit_rig.arena + admit_rig.at.header_offset_bytes);
    attnd__batch__free_unpacked(message, NULL);
}

static void absent_options_get_their_defaults(void **state)
{
    (void)state;
    Attnd__Batch *message = unpack();
    message->has_sm_scale = message->has_reserve_pages = 0;
    Attnd__Strides **strides[] = {&message->q, &message->o, &message->lse, &message->k,
                                  &message->v};
    for (uint32_t i = 0; i < 5; i++) {
        attnd__strides__free_unpacked(*strides[i], NULL);
        *strides[i] = NULL;
    }
    pack(message);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    assert_true(fabsf(admit_rig.batch.sm_scale - 1.0f / sqrtf(128.0f)) < 1e-7f);
    assert_int_equal(admit_rig.batch.reserve_pages, 0);
    assert_int_equal(admit_rig.batch.q_pitch.row, 32 * 128);
    assert_int_equal(admit_rig.batch.q_pitch.head, 128);
    assert_int_equal(admit_rig.batch.o_pitch.row, 32 * 128);
    assert_int_equal(admit_rig.batch.lse_pitch.row, 32);
    assert_int_equal(admit_rig.batch.lse_pitch.head, 1);
    assert_int_equal(admit_rig.batch.k_pitch.row, 8 * 128);
    assert_int_equal(admit_rig.batch.v_pitch.head, 128);
    assert_int_equal(admit_rig.batch.extents.q_bytes, admit_rig.batch.rows * 32 * 128 * 2);
    assert_int_equal(admit_rig.batch.extents.o_bytes, admit_rig.batch.rows * 32 * 128 * 2);
    assert_int_equal(admit_rig.batch.extents.lse_bytes, admit_rig.batch.rows * 32 * 4);
    assert_int_equal(admit_rig.batch.extents.k_bytes, admit_rig.batch.rows * 8 * 128 * 2);
    assert_int_equal(admit_rig.batch.extents.v_bytes, admit_rig.batch.rows * 8 * 128 * 2);
}

static void an_extent_ends_with_the_last_element_and_not_with_its_padding(void **state)
{
    (void)state;
    admit_rig.c.batch.o_pitch.row = 40 * 128;
    admit_rig.c.batch.o_pitch.head = 130;
    admit_case_write(&admit_rig);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    assert_int_equal(admit_rig.batch.extents.o_bytes,
                     ((admit_rig.batch.rows - 1) * 40 * 128 + 31 * 130 + 128) * 2);
}

static void what_exceeds_the_plan_is_no_space(void **state)
{
    (void)state;
    admit_rig.limits.requests = 3;
    admit_rig_expect_fault(ATTND_E_NO_SPACE, ATTND_F_REQUESTS, 0, 4, 3);
    admit_rig.limits.requests = 4;
    admit_rig.limits.rows = 6;
    admit_rig_expect_fault(ATTND_E_NO_SPACE, ATTND_F_ROWS, 0, 7, 6);
    admit_rig.limits.rows = 7;
    admit_rig.limits.levels = 1;
    admit_rig_expect_fault(ATTND_E_NO_SPACE, ATTND_F_LEVELS, 0, 2, 1);
    admit_rig.limits.levels = 2;
    admit_rig.limits.pages = 9;
    admit_rig_expect_fault(ATTND_E_NO_SPACE, ATTND_F_PAGES, 0, 10, 9);
    admit_rig.limits.pages = 12; /* three requests of the last level want one more each */
    admit_rig_expect_fault(ATTND_E_NO_SPACE, ATTND_F_RESERVE_PAGES, 0, 1, 0);
    admit_rig.limits.pages = 13;
    const uint32_t heads_q = admit_rig.limits.heads_q;
    admit_rig.limits.heads_q = heads_q / 2;
    admit_rig_expect_fault(ATTND_E_NO_SPACE, ATTND_F_HEADS_Q, 0, heads_q, heads_q / 2);
    admit_rig.limits.heads_q = heads_q;
    assert_int_equal(admit_case_admit(&admit_rig), 0);
}

static void scalars_are_checked_against_the_pool(void **state)
{
    (void)state;
    admit_rig.c.batch.heads_q = 33;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_HEADS_Q, 0, 33, 32);
    admit_rig.c.batch.heads_q = 0;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_HEADS_Q, 0, 0, 8);
    admit_rig.c.batch.heads_q = UINT32_MAX;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_HEADS_Q, 0, UINT32_MAX, ATTND_HEADS_MAX);
    admit_rig.c.batch.heads_q = 32;
    admit_rig.c.batch.dtype = ATTND_BF16;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_DTYPE, 0, ATTND_BF16, ATTND_FP16);
    admit_rig.c.batch.dtype = ATTND_FP16;
    admit_rig.c.batch.flags = 8;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_FLAGS, 0, 8, ATTND_BATCH_FLAGS);
}

static void beside_a_pool_of_fp8_rows_are_of_either_type_of_16_bits(void **state)
{
    (void)state;
    for (uint32_t pool = ATTND_FP8_E4M3; pool <= ATTND_FP8_E5M2; pool++) {
        admit_rig.c.pool.dtype = pool;
        for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++) {
            admit_rig.c.batch.dtype = dtype;
            admit_case_write(&admit_rig);
            assert_int_equal(admit_case_admit(&admit_rig), 0);
            assert_int_equal(admit_rig.batch.dtype, dtype);
        }
        const uint32_t bad[] = {0, ATTND_FP8_E4M3, ATTND_FP8_E5M2, ATTND_DTYPES_END};
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            admit_rig.c.batch.dtype = bad[i];
            admit_case_write(&admit_rig);
            admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_DTYPE, 0, bad[i], ATTND_BF16);
        }
    }
}

static void a_group_has_at_most_its_maximum_of_heads(void **state)
{
    const int32_t one_row[1] = {1}, kv_len[1] = {1};

    (void)state;
    plan_case_free(&admit_rig.c);
    plan_case_begin(&admit_rig.c);
    admit_rig.c.pool.heads_kv = 1;
    admit_rig.c.batch.heads_q = ATTND_GROUP_MAX + 1;
    plan_case_level(&admit_rig.c, 1, one_row, kv_len);
    plan_case_fit(&admit_rig.c);
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_HEADS_Q, 0, ATTND_GROUP_MAX + 1, ATTND_GROUP_MAX);
}

static void sm_scale_is_finite_and_positive_or_defaulted(void **state)
{
    const float bad[] = {-1.0f, NAN, INFINITY, -INFINITY, -0.001f, -1e30f};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        admit_rig.c.batch.sm_scale = bad[i];
        admit_case_write(&admit_rig);
        assert_int_equal(admit_case_admit(&admit_rig), -ATTND_E_RANGE);
        assert_int_equal(admit_rig.fault.field, ATTND_F_SM_SCALE);
        uint32_t bits = (uint32_t)admit_rig.fault.value;
        assert_memory_equal(&bits, &bad[i], sizeof(bits));
    }
    admit_rig.c.batch.sm_scale = 0.0f;
    admit_case_write(&admit_rig);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    assert_true(fabsf(admit_rig.batch.sm_scale - 1.0f / sqrtf(128.0f)) < 1e-7f);
}

static void strides_that_reach_beyond_64_bits_are_refused(void **state)
{
    (void)state;
    admit_rig.c.batch.q_pitch.row = INT64_MAX;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_Q, 0, INT64_MAX, INT64_MAX / 2);
    admit_rig.c.batch.q_pitch.row = -1;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_Q, 0, -1, 0);
    admit_rig.c.batch.q_pitch.row = 0;
    admit_rig.c.batch.v_pitch.head = -128;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_V, 1, -128, 0);
    admit_rig.c.batch.v_pitch.head = INT64_MAX / 4;
    admit_case_write(&admit_rig);
    assert_int_equal(admit_case_admit(&admit_rig), -ATTND_E_RANGE);
    assert_int_equal(admit_rig.fault.field, ATTND_F_V);
}

static void inputs_may_broadcast_and_outputs_may_not(void **state)
{
    (void)state;
    admit_rig.c.batch.q_pitch.row = 128; /* all heads read the same */
    admit_case_write(&admit_rig);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    admit_rig.c.batch.o_pitch.row = 128;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_O, 1, 0, 128);
    admit_rig.c.batch.o_pitch.row =
        31 * 128 + 127; /* the last head of a row runs into the next row */
    admit_rig.c.batch.o_pitch.head = 128;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_O, 0, 31 * 128 + 127, 32 * 128);
    admit_rig.c.batch.o_pitch.row = 128; /* heads first */
    admit_rig.c.batch.o_pitch.head = 7 * 128;
    admit_case_write(&admit_rig);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    admit_rig.c.batch.o_pitch.head = 7 * 128 - 1;
    admit_case_write(&admit_rig);
    assert_int_equal(admit_case_admit(&admit_rig), -ATTND_E_INVALID);
    admit_rig.c.batch.o_pitch.row = 40 * 128; /* padded */
    admit_rig.c.batch.o_pitch.head = 130;
    admit_case_write(&admit_rig);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    admit_rig.c.batch.lse_pitch.row = 31;
    admit_rig.c.batch.lse_pitch.head = 1;
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_LSE, 0, 31, 32);
    admit_rig.c.batch.lse_pitch.row = 1;
    admit_rig.c.batch.lse_pitch.head = 7;
    admit_case_write(&admit_rig);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
}

static void arrays_must_lie_inside_the_arena_and_aligned(void **state)
{
    (void)state;
    Attnd__Batch *message = unpack();
    message->level[1]->kv_indices = admit_rig.arena_bytes - 4 * message->level[1]->pages + 4;
    pack(message);
    admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_ARENA, 1, (int64_t)admit_rig.arena_bytes - 24,
                           (int64_t)admit_rig.arena_bytes - 28);
    message = unpack();
    message->level[1]->kv_indices = UINT64_MAX - 4;
    pack(message);
    assert_int_equal(admit_case_admit(&admit_rig), -ATTND_E_RANGE);
    message = unpack();
    message->level[1]->kv_indices = admit_rig.at.kv_indices[1];
    message->level[0]->qo_indptr += 2;
    pack(message);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_ARENA, 0,
                           (int64_t)admit_rig.at.qo_indptr[0] + 2,
                           (int64_t)admit_rig.at.qo_indptr[0]);
}

static void counts_that_overflow_are_refused_before_anything_is_copied(void **state)
{
    (void)state;
    Attnd__Batch *message = unpack();
    message->level[0]->entries = UINT32_MAX;
    message->level[1]->entries = 5;
    pack(message);
    admit_rig_expect_fault(ATTND_E_NO_SPACE, ATTND_F_REQUESTS, 0, (int64_t)UINT32_MAX + 5, 4);
    message = unpack();
    message->level[0]->entries = 1;
    message->level[1]->entries = 3;
    message->level[0]->pages = UINT32_MAX;
    pack(message);
    assert_int_equal(admit_case_admit(&admit_rig), -ATTND_E_NO_SPACE);
    message = unpack();
    message->level[0]->pages = 3;
    message->reserve_pages = UINT32_MAX;
    pack(message);
    admit_rig_expect_fault(ATTND_E_NO_SPACE, ATTND_F_RESERVE_PAGES, 0, UINT32_MAX, 1);
    assert_null(admit_rig.staging.words);
}

static void the_header_must_lie_inside_the_arena(void **state)
{
    const struct {
        uint64_t offset_bytes;
        uint32_t bytes;
        enum attnd_field field;
    } bad[] = {
        {admit_rig.arena_bytes, 1, ATTND_F_ARENA},
        {UINT64_MAX, 100, ATTND_F_ARENA},
        {UINT64_MAX - 99, 100, ATTND_F_ARENA},
        {64, ATTND_BATCH_HEADER_BYTES_MAX + 1, ATTND_F_HEADER},
        {64, UINT32_MAX, ATTND_F_HEADER},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(attnd_admit_batch(admit_rig.arena, admit_rig.arena_bytes,
                                           bad[i].offset_bytes, bad[i].bytes, &admit_rig.limits,
                                           &admit_rig.staging, &admit_rig.batch, &admit_rig.fault),
                         -ATTND_E_RANGE);
        assert_int_equal(admit_rig.fault.field, bad[i].field);
    }
}

static void a_header_cut_short_is_a_protocol_error_or_a_batch(void **state)
{
    const uint32_t full = admit_rig.at.header_bytes;
    uint32_t refused = 0;

    (void)state;
    for (admit_rig.at.header_bytes = 0; admit_rig.at.header_bytes < full;
         admit_rig.at.header_bytes++) {
        int code = admit_case_admit(&admit_rig);
        refused += code == -ATTND_E_PROTOCOL;
        assert_true(code != 0 || !batch_check(&admit_rig.batch, &admit_rig.limits));
    }
    assert_true(refused > full / 2);
    admit_rig.at.header_bytes = 0;
    admit_rig_expect_fault(ATTND_E_PROTOCOL, ATTND_F_HEADER, 0, 0, 0);
}

/* Field 1000, a varint. */
static void give_unknown_field(ProtobufCMessage *message)
{
    message->unknown_fields = calloc(1, sizeof(*message->unknown_fields));
    assert_non_null(message->unknown_fields);
    message->n_unknown_fields = 1;
    message->unknown_fields[0].tag = 1000;
    message->unknown_fields[0].wire_type = PROTOBUF_C_WIRE_TYPE_VARINT;
    message->unknown_fields[0].len = 1;
    message->unknown_fields[0].data = calloc(1, 1);
    assert_non_null(message->unknown_fields[0].data);
}

static void an_unknown_field_is_refused_wherever_it_is(void **state)
{
    (void)state;
    for (uint32_t place = 0; place < 5; place++) {
        admit_case_write(&admit_rig);
        Attnd__Batch *message = unpack();
        ProtobufCMessage *bases[] = {&message->base, &message->level[0]->base,
                                     &message->level[1]->base, &message->q->base,
                                     &message->v->base};
        give_unknown_field(bases[place]);
        pack(message);
        admit_rig_expect_fault(ATTND_E_PROTOCOL, ATTND_F_HEADER, 0, admit_rig.at.header_bytes, 0);
    }
}

static void a_header_that_unpacks_to_too_much_is_refused(void **state)
{
    (void)state;
    /* 2,000 empty Strides: 2 bytes each, a message each. */
    uint8_t *header = admit_rig.arena + admit_rig.at.header_offset_bytes;
    for (uint32_t i = 0; i < 4000; i += 2) {
        header[i] = 8 << 3 | 2;
        header[i + 1] = 0;
    }
    admit_rig.at.header_bytes = 4000;
    admit_rig_expect_fault(ATTND_E_PROTOCOL, ATTND_F_HEADER, 0, 4000, 0);
}

static void the_allocator_ends_where_its_buffer_does(void **state)
{
    _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t buffer[100];
    struct attnd_admit_alloc alloc;
    ProtobufCAllocator *a = &alloc.allocator;

    (void)state;
    attnd_admit_alloc_init(&alloc, buffer, sizeof(buffer));
    uint8_t *one = a->alloc(a->allocator_data, 1);
    uint8_t *two = a->alloc(a->allocator_data, 80);
    assert_ptr_equal(one, buffer);
    assert_int_equal((uintptr_t)two % ATTND_ADMIT_ALIGN_BYTES, 0);
    assert_true(two >= one + 1 && two + 80 <= buffer + sizeof(buffer));
    assert_null(a->alloc(a->allocator_data, 5));
    assert_null(a->alloc(a->allocator_data, SIZE_MAX));
    a->free(a->allocator_data, one);
    assert_non_null(a->alloc(a->allocator_data, 4));
    assert_null(a->alloc(a->allocator_data, 1));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, admit_rig_begin, admit_rig_end)
    const struct CMUnitTest tests[] = {
        TEST(absent_options_get_their_defaults),
        TEST(an_extent_ends_with_the_last_element_and_not_with_its_padding),
        TEST(what_exceeds_the_plan_is_no_space),
        TEST(scalars_are_checked_against_the_pool),
        TEST(beside_a_pool_of_fp8_rows_are_of_either_type_of_16_bits),
        TEST(a_group_has_at_most_its_maximum_of_heads),
        TEST(sm_scale_is_finite_and_positive_or_defaulted),
        TEST(strides_that_reach_beyond_64_bits_are_refused),
        TEST(inputs_may_broadcast_and_outputs_may_not),
        TEST(arrays_must_lie_inside_the_arena_and_aligned),
        TEST(counts_that_overflow_are_refused_before_anything_is_copied),
        TEST(the_header_must_lie_inside_the_arena),
        TEST(a_header_cut_short_is_a_protocol_error_or_a_batch),
        TEST(an_unknown_field_is_refused_wherever_it_is),
        TEST(a_header_that_unpacks_to_too_much_is_refused),
        TEST(the_allocator_ends_where_its_buffer_does),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
