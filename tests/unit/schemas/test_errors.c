/* test_errors.c - a fault becomes a sentence that names field, index, value and limit. */
#include "schemas/errors.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* How many there are, counted from the lists: one that is appended is looked at too. */
#define ONE(name, number, text) +1
enum { CODES = 0 ATTND_ERRORS(ONE), FIELDS = 0 ATTND_FIELDS(ONE) }; /* NONE is a field */
#undef ONE

static void a_sentence_names_field_index_value_and_limit(void **state)
{
    (void)state;
    struct attnd_fault fault = {0};
    char text[200];
    assert_int_equal(attnd_fault_set(&fault, -ATTND_E_RANGE, ATTND_F_KV_INDICES, 7, 4096, 1024),
                     -ATTND_E_RANGE);
    assert_ptr_equal(attnd_fault_string(&fault, text, sizeof(text)), text);
    assert_string_equal(text, "ATTND_E_RANGE: kv_indices[7] is 4096, limit 1024 (a value is "
                              "outside its limits)");
}

static void the_first_element_of_an_array_has_an_index_too(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_INVALID, ATTND_F_QO_INDPTR, 0, -3, 0};
    char text[200];
    attnd_fault_string(&fault, text, sizeof(text));
    assert_non_null(strstr(text, "qo_indptr[0] is -3, limit 0"));
}

static void a_missing_pointer_and_an_empty_plan_are_told_in_words(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_INVALID, ATTND_F_KV_INDPTR, 0, 0, 0};
    char text[200];
    assert_string_equal(attnd_fault_string(&fault, text, sizeof(text)),
                        "ATTND_E_INVALID: kv_indptr is missing");
    fault.field = ATTND_F_PLAN;
    fault.value = 7; /* its handle */
    assert_string_equal(attnd_fault_string(&fault, text, sizeof(text)),
                        "ATTND_E_INVALID: plan 7 is empty: set a batch first");
}

static void a_scale_is_told_as_the_float_that_it_was(void **state)
{
    (void)state;
    const float scales[] = {-0.5f, NAN, -1e30f};
    const char *const said[] = {"sm_scale is -0.5, limit 0", "nan, limit 0", "is -1e+30, limit 0"};
    char text[200];

    for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
        uint32_t bits;
        memcpy(&bits, &scales[i], sizeof(bits));
        struct attnd_fault fault = {-ATTND_E_RANGE, ATTND_F_SM_SCALE, 0, bits, 0};
        assert_non_null(strstr(attnd_fault_string(&fault, text, sizeof(text)), said[i]));
    }
}

static void a_head_dim_that_nobody_has_is_told_all_that_there_are(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_UNSUPPORTED, ATTND_F_HEAD_DIM, 0, 100, 256};
    char text[200];
    attnd_fault_string(&fault, text, sizeof(text));
    assert_non_null(
        strstr(text, "head_dim is 100, not a multiple of 16 up to 256, nor 576 with dim_vo 512 ("));
    fault.value = 128;
    fault.limit = 64;
    attnd_fault_string(&fault, text, sizeof(text));
    assert_non_null(strstr(text, "head_dim is 128, limit 64 ("));
    fault.field = ATTND_F_DIM_VO; /* which is no question of more or less */
    attnd_fault_string(&fault, text, sizeof(text));
    assert_non_null(strstr(text, "dim_vo is 128, not 64 as dim_qk, nor 128 beside 192 ("));
}

static void a_right_that_is_missing_shows_no_number_that_is_none(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_PERMISSION, ATTND_F_POOL, 0, 0, 0};
    char text[200];
    assert_string_equal(attnd_fault_string(&fault, text, sizeof(text)),
                        "ATTND_E_PERMISSION: pool: the session has no right to do this");
    fault.value = 3; /* its handle */
    attnd_fault_string(&fault, text, sizeof(text));
    assert_non_null(strstr(text, "pool is 3 ("));
    fault = (struct attnd_fault){-ATTND_E_PERMISSION, ATTND_F_DAEMON_UID, 0, 65534, 1000};
    assert_string_equal(
        attnd_fault_string(&fault, text, sizeof(text)),
        "ATTND_E_PERMISSION: daemon_uid: the service runs as user 65534, and not as 1000");
}

static void a_limit_that_is_an_option_of_the_service_is_named(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_NO_SPACE, ATTND_F_PARTIALS, 0, 8912896, 4096};
    char text[200];
    attnd_fault_string(&fault, text, sizeof(text));
    assert_non_null(strstr(text, "partials is 8912896, limit 4096 of attnd --scratch "));
}

static void a_scalar_has_no_index(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_INVALID, ATTND_F_HEADS_Q, 0, 33, 8};
    char text[200];
    attnd_fault_string(&fault, text, sizeof(text));
    assert_non_null(strstr(text, "heads_q is 33, limit 8"));
}

/* There is no plan number, page or state that would have been right instead. */
static void a_code_about_a_state_names_no_limit(void **state)
{
    (void)state;
    const int states[] = {ATTND_E_OVERLAP,      ATTND_E_UNKNOWN,     ATTND_E_BUSY,
                          ATTND_E_FULL,         ATTND_E_PERMISSION,  ATTND_E_PROTOCOL,
                          ATTND_E_DISCONNECTED, ATTND_E_CANCELLED,   ATTND_E_WORKER_RESTARTED,
                          ATTND_E_NOT_LEASED,   ATTND_E_SHARED_PAGE, ATTND_E_EXPIRED,
                          ATTND_E_FORKED};
    struct attnd_fault fault = {-ATTND_E_NOT_LEASED, ATTND_F_KV_INDICES, 7, 12, 0};
    char text[200];

    assert_string_equal(attnd_fault_string(&fault, text, sizeof(text)),
                        "ATTND_E_NOT_LEASED: kv_indices[7] is 12 (the session holds no lease of "
                        "the page)");
    fault = (struct attnd_fault){-ATTND_E_BUSY, ATTND_F_PLAN, 0, 3, 1};
    assert_string_equal(
        attnd_fault_string(&fault, text, sizeof(text)),
        "ATTND_E_BUSY: plan is 3 (the object is in use by a plan, a pool or operations "
        "in flight)");
    for (int code = 1; code <= CODES; code++) {
        /* value is errno, or the driver's */
        int about_a_state = code == ATTND_E_SYSTEM || code == ATTND_E_DEVICE;
        for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
            about_a_state |= code == states[i];
        fault = (struct attnd_fault){-code, ATTND_F_PLAN, 0, 3, 77};
        attnd_fault_string(&fault, text, sizeof(text));
        assert_int_equal(strstr(text, "limit 77") != NULL, !about_a_state);
    }
}

static void a_system_error_says_what_the_system_said(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_SYSTEM, ATTND_F_SOCKET, 0, ENOENT, 0};
    char text[200];
    attnd_fault_string(&fault, text, sizeof(text));
    assert_string_equal(text, "ATTND_E_SYSTEM: socket: No such file or directory");
    fault.field = ATTND_F_NONE;
    attnd_fault_string(&fault, text, sizeof(text));
    assert_string_equal(text, "ATTND_E_SYSTEM: No such file or directory");
    fault = (struct attnd_fault){-ATTND_E_DEVICE, ATTND_F_NONE, 0, 700, 0};
    attnd_fault_string(&fault, text, sizeof(text));
    assert_string_equal(text, "ATTND_E_DEVICE: the GPU or its driver refused: error 700");
}

static void a_lost_service_is_told_in_the_systems_words(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_DISCONNECTED, ATTND_F_SOCKET, 0, ECONNREFUSED, 0};
    char text[200];
    attnd_fault_string(&fault, text, sizeof(text));
    assert_string_equal(text,
                        "ATTND_E_DISCONNECTED: the service cannot be reached: Connection refused");
    fault.value = 0;
    attnd_fault_string(&fault, text, sizeof(text));
    assert_string_equal(text, "ATTND_E_DISCONNECTED: the service is gone, or has ended the "
                              "session");
}

/* Neither has a number that would tell anybody anything: a uid or errno here, random bytes there.
 */
static void sockets_and_tokens_are_spoken_of_in_words(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_PERMISSION, ATTND_F_SOCKET, 0, EACCES, 0};
    char text[200];
    assert_string_equal(attnd_fault_string(&fault, text, sizeof(text)),
                        "ATTND_E_PERMISSION: socket: this user is not admitted; see attnd "
                        "--allow-uid");
    fault = (struct attnd_fault){-ATTND_E_RANGE, ATTND_F_SOCKET, 0, 200, 107};
    assert_non_null(strstr(attnd_fault_string(&fault, text, sizeof(text)), "is 200, limit 107"));
    fault = (struct attnd_fault){-ATTND_E_EXPIRED, ATTND_F_TICKET, 0, 0, 0};
    assert_string_equal(attnd_fault_string(&fault, text, sizeof(text)),
                        "ATTND_E_EXPIRED: ticket: the ticket expired or was already claimed");
    fault = (struct attnd_fault){-ATTND_E_NO_MEMORY, ATTND_F_TICKET, 0, 4096, 4096};
    assert_non_null(strstr(attnd_fault_string(&fault, text, sizeof(text)), "is 4096, limit 4096"));
}

static void without_a_field_the_code_speaks(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_CANCELLED, ATTND_F_NONE, 0, 0, 0};
    char text[200];
    attnd_fault_string(&fault, text, sizeof(text));
    assert_string_equal(text, "ATTND_E_CANCELLED: the operation was cancelled");
}

static void a_short_buffer_is_cut_and_terminated(void **state)
{
    (void)state;
    struct attnd_fault fault = {-ATTND_E_RANGE, ATTND_F_KV_INDICES, UINT64_MAX, INT64_MIN,
                                INT64_MAX};
    char text[200];
    for (size_t bytes = 0; bytes < sizeof(text); bytes++) {
        memset(text, '#', sizeof(text));
        attnd_fault_string(&fault, text, bytes);
        assert_int_equal(text[bytes], '#');
        if (bytes > 0)
            assert_true(strlen(text) < bytes);
    }
}

static void every_number_has_its_own_name(void **state)
{
    (void)state;
    for (int code = 1; code <= CODES; code++) {
        const char *name = attnd_error_name(code);
        assert_string_not_equal(name, "ATTND_E_?");
        assert_string_equal(name, attnd_error_name(-code));
        assert_string_not_equal(attnd_error_text(code), "unknown error");
        for (int other = 1; other < code; other++)
            assert_string_not_equal(name, attnd_error_name(other));
    }
    for (uint32_t field = 1; field < FIELDS; field++) {
        assert_string_not_equal(attnd_field_name(field), "?");
        for (uint32_t other = 1; other < field; other++)
            assert_string_not_equal(attnd_field_name(field), attnd_field_name(other));
    }
    assert_string_equal(attnd_error_name(0), "ATTND_OK");
    assert_string_equal(attnd_field_name(ATTND_F_NONE), "");
}

/* A completion is written by the other side: any number may stand there. */
static void numbers_of_a_newer_peer_are_survived(void **state)
{
    (void)state;
    const int codes[] = {-1000, 1000, INT_MAX, -INT_MAX, INT_MIN};
    char text[200];
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        struct attnd_fault fault = {codes[i], 999999, 3, 4, 5};
        assert_string_equal(attnd_error_name(codes[i]), "ATTND_E_?");
        assert_string_equal(attnd_error_text(codes[i]), "unknown error");
        assert_non_null(strstr(attnd_fault_string(&fault, text, sizeof(text)), "?[3] is 4"));
    }
}

static void a_fault_nobody_wants_is_not_written(void **state)
{
    (void)state;
    assert_int_equal(attnd_fault_set(NULL, -ATTND_E_BUSY, ATTND_F_PLAN, 0, 0, 0), -ATTND_E_BUSY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sentence_names_field_index_value_and_limit),
        cmocka_unit_test(the_first_element_of_an_array_has_an_index_too),
        cmocka_unit_test(a_right_that_is_missing_shows_no_number_that_is_none),
        cmocka_unit_test(a_limit_that_is_an_option_of_the_service_is_named),
        cmocka_unit_test(a_scalar_has_no_index),
        cmocka_unit_test(a_missing_pointer_and_an_empty_plan_are_told_in_words),
        cmocka_unit_test(a_scale_is_told_as_the_float_that_it_was),
        cmocka_unit_test(a_head_dim_that_nobody_has_is_told_all_that_there_are),
        cmocka_unit_test(a_code_about_a_state_names_no_limit),
        cmocka_unit_test(a_system_error_says_what_the_system_said),
        cmocka_unit_test(a_lost_service_is_told_in_the_systems_words),
        cmocka_unit_test(sockets_and_tokens_are_spoken_of_in_words),
        cmocka_unit_test(without_a_field_the_code_speaks),
        cmocka_unit_test(a_short_buffer_is_cut_and_terminated),
        cmocka_unit_test(every_number_has_its_own_name),
        cmocka_unit_test(numbers_of_a_newer_peer_are_survived),
        cmocka_unit_test(a_fault_nobody_wants_is_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
