/* test_attnctl.c - what attnctl prints: every field of the status, and strings that stay strings.
 */
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *json_of(const ProtobufCMessage *message)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_int_equal(attnd_json_print(out, attnd_json_message(message), JSON_COMPACT), 0);
    fclose(out);
    return text;
}

static void numbers_strings_and_lists_are_printed_as_such(void **state)
{
    (void)state;
    Attnd__Status status = ATTND__STATUS__INIT;
    Attnd__SessionStatus session = ATTND__SESSION_STATUS__INIT;
    Attnd__SessionStatus *sessions[] = {&session, &session};
    session.session = 3;
    session.has_share = session.has_dying = 1;
    session.share = 0.5;
    session.dying = 1;
    status.version = (char *)(uintptr_t) "1\"\\\n2";
    status.has_kv_bytes = 1;
    status.kv_bytes = INT64_MAX;
    status.n_sessions = 2;
    status.sessions = sessions;
    char *text = json_of(&status.base);
    assert_string_equal(
        text, "{\"version\":\"1\\\"\\\\\\n2\",\"kv_bytes\":9223372036854775807,"
              "\"sessions\":[{\"session\":3,\"share\":0.5,\"dying\":true,\"quota_used\":[]},"
              "{\"session\":3,\"share\":0.5,\"dying\":true,\"quota_used\":[]}],"
              "\"pools\":[],\"faults\":[],\"settings\":[],"
              "\"quotas\":[],\"users\":[],\"peers\":[]}\n");
    free(text);
}

/* jansson refuses them; a status must be printed all the same. */
static void what_json_cannot_say_is_said_as_nearly_as_it_can(void **state)
{
    (void)state;
    Attnd__Status status = ATTND__STATUS__INIT;
    Attnd__SessionStatus session = ATTND__SESSION_STATUS__INIT;
    Attnd__SessionStatus *sessions[] = {&session};
    session.has_share = 1;
    session.share = (double)NAN;
    status.version = (char *)(uintptr_t) "a\xff\xc3z";
    status.has_kv_bytes = 1;
    status.kv_bytes = UINT64_MAX;
    status.n_sessions = 1;
    status.sessions = sessions;
    char *text = json_of(&status.base);
    assert_non_null(strstr(text, "\"version\":\"a??z\""));
    assert_non_null(strstr(text, "\"kv_bytes\":1.8446744073709552e19"));
    assert_non_null(strstr(text, "\"share\":null"));
    free(text);
}

static void the_other_kinds_of_fields_are_printed_too(void **state)
{
    (void)state;
    uint8_t bytes[] = {0x00, 0xfe};
    int32_t pages[] = {-1, 2};
    Attnd__PagesReply pages_reply = ATTND__PAGES_REPLY__INIT;
    Attnd__TokenReply token = ATTND__TOKEN_REPLY__INIT;
    Attnd__Reply reply = ATTND__REPLY__INIT;
    Attnd__PoolCreate pool = ATTND__POOL_CREATE__INIT;
    token.token.data = bytes;
    token.token.len = sizeof(bytes);
    reply.id = 1;
    reply.code = -2;
    reply.result_case = ATTND__REPLY__RESULT_TOKEN;
    reply.token = &token;
    char *text = json_of(&reply.base);
    assert_string_equal(text, "{\"id\":1,\"code\":-2,\"token\":{\"token\":\"00fe\"}}\n");
    free(text);

    pages_reply.page = pages;
    pages_reply.n_page = 2;
    text = json_of(&pages_reply.base);
    assert_string_equal(text, "{\"pool\":0,\"page\":[-1,2]}\n");
    free(text);

    pool.page_owner = ATTND__PAGE_OWNER__OWNER_ENGINE;
    text = json_of(&pool.base);
    assert_non_null(strstr(text, "\"page_owner\":\"OWNER_ENGINE\",\"k\":[],\"v\":[]}\n"));
    free(text);
}

/* Sets has_ of every optional field, so that the walk has to print them all; messages are empty. */
static void set_all(ProtobufCMessage *message)
{
    static _Alignas(max_align_t) char inner[8][512];
    size_t used = 0;

    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        char *base = (char *)message;
        if (field->label != PROTOBUF_C_LABEL_OPTIONAL)
            continue;
        if (field->type == PROTOBUF_C_TYPE_STRING)
            memcpy(base + field->offset, &(char *){(char *)(uintptr_t) "text"}, sizeof(char *));
        else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            const ProtobufCMessageDescriptor *kind = field->descriptor;
            assert_true(used < 8 && kind->sizeof_message <= sizeof(inner[0]));
            protobuf_c_message_init(kind, inner[used]);
            memcpy(base + field->offset, &(void *){inner[used++]}, sizeof(void *));
        } else
            memcpy(base + field->quantifier_offset, &(protobuf_c_boolean){1},
                   sizeof(protobuf_c_boolean));
    }
}

static void no_field_of_the_status_is_left_out(void **state)
{
    (void)state;
    Attnd__Status status = ATTND__STATUS__INIT;
    char key[64];
    set_all(&status.base);
    char *text = json_of(&status.base);
    for (unsigned i = 0; i < status.base.descriptor->n_fields; i++) {
        snprintf(key, sizeof(key), "\"%s\":", status.base.descriptor->fields[i].name);
        assert_non_null(strstr(text, key));
    }
    free(text);
}

static void expect_explained(const char *path, int code, enum attnctl_exit exit_code,
                             const char *wanted)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    errno = ENOENT;
    assert_int_equal(attnctl_explain(out, path, code), exit_code);
    fclose(out);
    if (!strstr(text, wanted))
        fail_msg("'%s' is not in: %s", wanted, text);
    free(text);
}

static void a_failure_names_the_path_that_was_tried(void **state)
{
    (void)state;
    setenv("ATTND_SOCKET", "/nowhere/attnd.sock", 1);
    expect_explained(NULL, -ATTND_E_DISCONNECTED, ATTNCTL_EXIT_UNREACHABLE,
                     "at /nowhere/attnd.sock: No such file or directory");
    expect_explained("/other", -ATTND_E_DISCONNECTED, ATTNCTL_EXIT_UNREACHABLE,
                     "at /other: No such");
    expect_explained("/other", -ATTND_E_PROTOCOL, ATTNCTL_EXIT_ANSWER,
                     "service at /other makes no");
    expect_explained("", -ATTND_E_INVALID, ATTNCTL_EXIT_USAGE, "at '': a path of 1 to 107 bytes");
    unsetenv("ATTND_SOCKET");
}

static void expect_refused(int code, uint32_t field, int64_t value, int64_t limit,
                           const char *wanted)
{
    char *text = NULL;
    size_t bytes = 0;
    Attnd__Reply reply = ATTND__REPLY__INIT;
    FILE *out = open_memstream(&text, &bytes);

    reply.code = code;
    reply.field = field;
    reply.value = value;
    reply.limit = limit;
    assert_int_equal(attnctl_refused(out, &reply), ATTNCTL_EXIT_ANSWER);
    fclose(out);
    if (!strstr(text, wanted))
        fail_msg("'%s' is not in: %s", wanted, text);
    free(text);
}

static void a_refusal_says_what_an_operator_can_do(void **state)
{
    (void)state;
    expect_refused(-ATTND_E_UNKNOWN, ATTND_F_SESSION, 99, 0, "there is no session 99");
    expect_refused(-ATTND_E_PERMISSION, ATTND_F_SESSION, 3, 0, "session 3 is another user's");
    expect_refused(-ATTND_E_PERMISSION, ATTND_F_WEIGHT, 1000, 77, "the service's user, 77, may");
    expect_refused(-ATTND_E_RANGE, ATTND_F_WEIGHT, 5000, 1000, "is 5000, limit 1000");
}

static void people_read_a_table(void **state)
{
    (void)state;
    Attnd__Status status = ATTND__STATUS__INIT;
    Attnd__PoolStatus pool = ATTND__POOL_STATUS__INIT;
    Attnd__PoolStatus *pools[] = {&pool};
    char *text = NULL;
    size_t bytes = 0;
    set_all(&status.base);
    status.heap_bytes = 3u << 29;
    status.switch_cost_us = 287;
    status.loop_reason = (char *)(uintptr_t) "refused";
    status.n_pools = 1;
    status.pools = pools;
    FILE *out = open_memstream(&text, &bytes);
    attnctl_print_status(out, &status);
    fclose(out);
    assert_non_null(strstr(text, "1.5 GiB"));
    assert_non_null(strstr(text, "(refused)"));
    assert_non_null(strstr(text, "costs two switches, 287 us as measured here\n"));
    assert_non_null(strstr(text, "page size"));
    assert_null(strstr(text, "share")); /* there is no session */
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_strings_and_lists_are_printed_as_such),
        cmocka_unit_test(what_json_cannot_say_is_said_as_nearly_as_it_can),
        cmocka_unit_test(the_other_kinds_of_fields_are_printed_too),
        cmocka_unit_test(no_field_of_the_status_is_left_out),
        cmocka_unit_test(a_failure_names_the_path_that_was_tried),
        cmocka_unit_test(a_refusal_says_what_an_operator_can_do),
        cmocka_unit_test(people_read_a_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
