/*
 * test_admit.c - the arrays of a batch: what is admitted comes out as it went in, and what is not
 * is named by field, index, value and limit.
 */
#include "service/admission/admit.h"
#include "tests/support/oracle/batch_check.h"
#include "tests/support/random/seed.h"
#include "tests/support/rigs/admit_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;

static void assert_same_arrays(const struct attnd_batch_view *want)
{
    for (uint32_t l = 0; l < want->levels; l++) {
        const struct attnd_level_view *a = &want->level[l], *b = &admit_rig.batch.level[l];
        const size_t indptrs = (a->entries + 1) * sizeof(int32_t);
        assert_int_equal(a->entries, b->entries);
        assert_int_equal(a->pages, b->pages);
        assert_memory_equal(a->qo_indptr, b->qo_indptr, indptrs);
        assert_memory_equal(a->kv_indptr, b->kv_indptr, indptrs);
        assert_memory_equal(a->kv_indices, b->kv_indices, a->pages * sizeof(int32_t));
        assert_memory_equal(a->kv_last_page_len, b->kv_last_page_len, a->entries * sizeof(int32_t));
    }
}

static void a_good_batch_comes_out_as_it_went_in(void **state)
{
    (void)state;
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    assert_null(batch_check(&admit_rig.batch, &admit_rig.limits));
    assert_int_equal(admit_rig.batch.rows, 7);
    assert_int_equal(admit_rig.batch.levels, 2);
    assert_int_equal(admit_rig.batch.entries, 4);
    assert_int_equal(admit_rig.batch.pages, 3 + 4 + 3);
    assert_int_equal(admit_rig.batch.reserve_pages, 1);
    assert_int_equal(admit_rig.batch.heads_q, 32);
    assert_true(admit_rig.batch.sm_scale == admit_rig.c.batch.sm_scale);
    assert_same_arrays(&admit_rig.c.batch);
}

static void what_the_client_writes_later_is_not_seen(void **state)
{
    (void)state;
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    memset(admit_rig.arena, 0xff, admit_rig.arena_bytes);
    assert_same_arrays(&admit_rig.c.batch);
}

static void any_good_batch_is_admitted(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 500; i++) {
        struct case_source source = {.prng = prng_fork(seed, i)};
        plan_case_free(&admit_rig.c);
        plan_case_draw(&admit_rig.c, &source);
        admit_case_write(&admit_rig);
        assert_int_equal(admit_case_admit(&admit_rig), 0);
        assert_null(batch_check(&admit_rig.batch, &admit_rig.limits));
        assert_same_arrays(&admit_rig.c.batch);
        assert_int_equal(admit_rig.batch.flags, admit_rig.c.batch.flags);
    }
}

static void a_batch_without_rows_or_requests_is_legal(void **state)
{
    (void)state;
    plan_case_free(&admit_rig.c);
    plan_case_begin(&admit_rig.c);
    plan_case_level(&admit_rig.c, 0, NULL, NULL);
    plan_case_fit(&admit_rig.c);
    admit_case_write(&admit_rig);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    assert_int_equal(admit_rig.batch.rows, 0);
    assert_int_equal(admit_rig.batch.entries, 0);
}

static void indptr_must_rise_from_zero_to_the_total(void **state)
{
    (void)state;
    admit_case_word(&admit_rig, admit_rig.at.qo_indptr[1], 0, 1);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_QO_INDPTR, 0, 1, 0);
    admit_case_word(&admit_rig, admit_rig.at.qo_indptr[1], 0, 0);
    admit_case_word(&admit_rig, admit_rig.at.qo_indptr[1], 2, 4);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_QO_INDPTR, 2, 4, 5);
    admit_case_word(&admit_rig, admit_rig.at.qo_indptr[1], 2, 5);
    admit_case_word(&admit_rig, admit_rig.at.qo_indptr[1], 3, 8);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_QO_INDPTR, 3, 8, 7);
    admit_case_word(&admit_rig, admit_rig.at.qo_indptr[1], 3, 7);
    admit_case_word(&admit_rig, admit_rig.at.kv_indptr[0], 1, INT32_MIN);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_KV_INDPTR, 1, INT32_MIN, 0);
    admit_case_word(&admit_rig, admit_rig.at.kv_indptr[0], 1, 4);
    admit_rig_expect_fault(ATTND_E_INVALID, ATTND_F_KV_INDPTR, 1, 4, 3);
    admit_case_word(&admit_rig, admit_rig.at.kv_indptr[0], 1, 3);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
}

/* Every place in an array longer than any vector, so that no lane and no tail is forgotten. */
static void a_page_outside_the_pool_is_named_wherever_it_is(void **state)
{
    (void)state;
    admit_case_one(&admit_rig, 16, 16 * 75);
    for (uint32_t p = 0; p < 75; p++) {
        const int32_t good = admit_rig.c.batch.level[0].kv_indices[p];
        admit_case_word(&admit_rig, admit_rig.at.kv_indices[0], p, 5000);
        admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_KV_INDICES, p, 5000, 4999);
        admit_case_word(&admit_rig, admit_rig.at.kv_indices[0], p, INT32_MAX);
        admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_KV_INDICES, p, INT32_MAX, 4999);
        admit_case_word(&admit_rig, admit_rig.at.kv_indices[0], p, -1);
        admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_KV_INDICES, p, -1, 0);
        admit_case_word(&admit_rig, admit_rig.at.kv_indices[0], p, INT32_MIN);
        admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_KV_INDICES, p, INT32_MIN, 0);
        admit_case_word(&admit_rig, admit_rig.at.kv_indices[0], p, 4999);
        assert_int_equal(admit_case_admit(&admit_rig), 0);
        admit_case_word(&admit_rig, admit_rig.at.kv_indices[0], p, good);
    }
}

static void last_page_len_is_between_one_and_page_size(void **state)
{
    (void)state;
    admit_case_word(&admit_rig, admit_rig.at.kv_last_page_len[1], 2, 0);
    admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_KV_LAST_PAGE_LEN, 2, 0, 1);
    admit_case_word(&admit_rig, admit_rig.at.kv_last_page_len[1], 2, 17);
    admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_KV_LAST_PAGE_LEN, 2, 17, 16);
    admit_case_word(&admit_rig, admit_rig.at.kv_last_page_len[1], 2, 16);
    /* A request without pages: not looked at. */
    admit_case_word(&admit_rig, admit_rig.at.kv_last_page_len[1], 1, -99);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
}

static void kv_len_must_fit_an_int32(void **state)
{
    (void)state;
    admit_case_one(&admit_rig, 1u << 28, INT32_MAX);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    admit_case_word(&admit_rig, admit_rig.at.kv_last_page_len[0], 0, 1 << 28);
    admit_rig_expect_fault(ATTND_E_RANGE, ATTND_F_KV_LEN, 0, (int64_t)INT32_MAX + 1, INT32_MAX);
}

static void staging_is_reused_and_grows(void **state)
{
    (void)state;
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    const int32_t *words = admit_rig.staging.words;
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    assert_ptr_equal(words, admit_rig.staging.words);
    admit_case_one(&admit_rig, 16, 16 * 20000);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
    assert_true(admit_rig.staging.words_max >= 20000);
    assert_same_arrays(&admit_rig.c.batch);
}

static int advance(uint64_t offset_bytes, uint32_t entries, uint32_t pages,
                   struct attnd_advance_view *view)
{
    const struct attnd_sqe_advance sqe = {
        .arrays_offset_bytes = offset_bytes, .entries = entries, .pages = pages};
    return attnd_admit_advance(admit_rig.arena, admit_rig.arena_bytes, &sqe, &admit_rig.limits,
                               &admit_rig.staging, view, &admit_rig.fault);
}

static void an_advance_is_copied_once_and_its_indptr_checked(void **state)
{
    const int32_t words[4 + 5 + 2] = {9, 8, 7, 6, 0, 0, 1, 1, 2, 41, 42};
    struct attnd_advance_view view;

    (void)state;
    memcpy(admit_rig.arena + 4096, words, sizeof(words));
    assert_int_equal(advance(4096, 4, 0, &view), 0);
    assert_null(view.page_indptr);
    assert_memory_equal(view.kv_len, words, 16);
    assert_int_equal(advance(4096, 4, 2, &view), 0);
    assert_null(advance_check(&view, &admit_rig.limits));
    assert_int_equal(view.page_indices[1], 42);
    memset(admit_rig.arena, 0xff, admit_rig.arena_bytes);
    assert_memory_equal(view.kv_len, words, sizeof(words));

    memcpy(admit_rig.arena + 4096, words, sizeof(words));
    admit_case_word(&admit_rig, 4096, 6, -1);
    assert_int_equal(advance(4096, 4, 2, &view), -ATTND_E_INVALID);
    assert_int_equal(admit_rig.fault.field, ATTND_F_KV_INDPTR);
    assert_int_equal(admit_rig.fault.index, 2);
    assert_int_equal(advance(admit_rig.arena_bytes - 12, 4, 0, &view), -ATTND_E_RANGE);
    assert_int_equal(advance(4098, 4, 0, &view), -ATTND_E_INVALID);
    assert_int_equal(advance(4096, 5, 0, &view), -ATTND_E_NO_SPACE);
    assert_int_equal(advance(4096, 4, admit_rig.limits.pages + 1, &view), -ATTND_E_NO_SPACE);
    admit_rig.limits.pages = 1u << 20;
    assert_true(admit_rig.arena_bytes < admit_rig.limits.pages * sizeof(int32_t));
    assert_int_equal(advance(0, 4, admit_rig.limits.pages, &view),
                     -ATTND_E_RANGE); /* from no offset */
    assert_int_equal(admit_rig.fault.limit, 0);
    assert_int_equal(advance(UINT64_MAX - 3, UINT32_MAX, UINT32_MAX, &view), -ATTND_E_NO_SPACE);
}

/* Against 128-bit arithmetic, with values of every magnitude. */
static void extents_are_exact_or_refused(void **state)
{
    struct prng prng = prng_fork(seed, 1);
    uint32_t refused = 0;

    (void)state;
    for (uint32_t i = 0; i < 200000; i++) {
        uint64_t counts[3], bytes = 1;
        int64_t strides[3];
        unsigned __int128 want = 1;
        int negative = 0, empty = 0;
        for (uint32_t d = 0; d < 3; d++) {
            counts[d] = prng_next(&prng) >> prng_below(&prng, 65) / 2 >> prng_below(&prng, 33);
            strides[d] = (int64_t)(prng_next(&prng) >> (1 + prng_below(&prng, 63)));
            if (prng_percent(&prng, 2))
                strides[d] = -strides[d];
            negative |= strides[d] < 0;
            empty |= counts[d] == 0;
            if (counts[d] && strides[d] > 0)
                want += (unsigned __int128)(counts[d] - 1) * (uint64_t)strides[d];
        }
        uint32_t element_bytes = 1u << prng_below(&prng, 4);
        int code = attnd_extent_bytes(counts, strides, 3, element_bytes, &bytes);
        int fits = !negative && (empty || want * element_bytes <= INT64_MAX);
        assert_int_equal(code, fits ? 0 : -ATTND_E_RANGE);
        if (fits)
            assert_true(bytes == (empty ? 0 : (uint64_t)want * element_bytes));
        refused += !fits;
    }
    assert_true(refused > 1000 && refused < 199000);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, admit_rig_begin, admit_rig_end)
    const struct CMUnitTest tests[] = {
        TEST(a_good_batch_comes_out_as_it_went_in),
        TEST(what_the_client_writes_later_is_not_seen),
        TEST(any_good_batch_is_admitted),
        TEST(a_batch_without_rows_or_requests_is_legal),
        TEST(indptr_must_rise_from_zero_to_the_total),
        TEST(a_page_outside_the_pool_is_named_wherever_it_is),
        TEST(last_page_len_is_between_one_and_page_size),
        TEST(kv_len_must_fit_an_int32),
        TEST(staging_is_reused_and_grows),
        TEST(an_advance_is_copied_once_and_its_indptr_checked),
        TEST(extents_are_exact_or_refused),
    };
#undef TEST
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
