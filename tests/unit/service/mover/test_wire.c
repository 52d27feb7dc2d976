/* test_wire.c - frames that come in pieces, are too long, or are nobody's. */
#include "service/mover/wire.h"

#include "schemas/errors.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

struct both {
    struct attnd_wire a, b;
};

static void open_both(struct both *both, int is_signed)
{
    static const uint8_t nonces[2][ATTND_AUTH_BYTES] = {{1}, {2}};
    const struct attnd_auth_key key = {.bytes = 16, .data = "0123456789abcdef"};
    int ends[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(attnd_wire_open(&both->a, ends[0]), 0);
    assert_int_equal(attnd_wire_open(&both->b, ends[1]), 0);
    if (!is_signed)
        return;
    assert_int_equal(attnd_auth_begin(&both->a.auth, &key, 0, nonces), 0);
    assert_int_equal(attnd_auth_begin(&both->b.auth, &key, 1, nonces), 0);
    both->a.signs = both->a.checks = both->b.signs = both->b.checks = 1;
}

static void close_both(struct both *both)
{
    attnd_wire_close(&both->a);
    attnd_wire_close(&both->b);
}

static void frames_come_whole_and_in_order(void **state)
{
    struct both both;
    enum attnd_wire_type type;
    const uint8_t *payload;
    size_t bytes;
    char text[64];
    (void)state;

    open_both(&both, 1);
    for (int i = 0; i < 50; i++) {
        memset(text, i, sizeof(text));
        assert_int_equal(attnd_wire_send(&both.a, ATTND_WIRE_PEER, text, (size_t)i), 0);
    }
    for (int i = 0; i < 50; i++) {
        assert_int_equal(attnd_wire_receive(&both.b), 0);
        for (int looks = 0; looks < 2; looks++) { /* it stays until it is taken */
            assert_int_equal(attnd_wire_look(&both.b, &type, &payload, &bytes), 1);
            assert_int_equal(type, ATTND_WIRE_PEER);
            assert_int_equal(bytes, i);
            for (size_t k = 0; k < bytes; k++)
                assert_int_equal(payload[k], i);
        }
        attnd_wire_taken(&both.b);
    }
    assert_int_equal(attnd_wire_look(&both.b, &type, &payload, &bytes), 0);
    close_both(&both);
}

/* Byte by byte. */
static void a_frame_that_is_not_all_there_is_none_yet(void **state)
{
    struct both both;
    enum attnd_wire_type type;
    const uint8_t *payload;
    uint8_t raw[256];
    size_t bytes;
    (void)state;

    open_both(&both, 1);
    assert_int_equal(attnd_wire_send(&both.a, ATTND_WIRE_INTRO, "hello", 5), 0);
    const ssize_t got = recv(both.b.fd, raw, sizeof(raw), 0);
    assert_int_equal(got, 4 + 6 + ATTND_AUTH_BYTES);
    for (ssize_t i = 0; i < got; i++) {
        assert_int_equal(attnd_wire_look(&both.b, &type, &payload, &bytes), 0);
        assert_int_equal(send(both.a.fd, &raw[i], 1, 0), 1);
        assert_int_equal(attnd_wire_receive(&both.b), 0);
    }
    assert_int_equal(attnd_wire_look(&both.b, &type, &payload, &bytes), 1);
    assert_int_equal(bytes, 5);
    assert_memory_equal(payload, "hello", 5);
    close_both(&both);
}

static void put_length(const struct both *both, uint32_t length)
{
    assert_int_equal(send(both->a.fd, &length, sizeof(length), 0), sizeof(length));
}

static void a_length_that_nobody_may_have_is_refused_before_it_is_read(void **state)
{
    static const struct {
        uint32_t length;
        int is_signed, code;
    } cases[] = {{ATTND_WIRE_HELLO_MAX + 1, 0, -ATTND_E_PERMISSION},
                 {UINT32_MAX, 0, -ATTND_E_PERMISSION},
                 {0, 0, -ATTND_E_PERMISSION},
                 {ATTND_WIRE_PAYLOAD_MAX + 1, 1, -ATTND_E_PROTOCOL},
                 {UINT32_MAX, 1, -ATTND_E_PROTOCOL},
                 {0, 1, -ATTND_E_PROTOCOL}};
    enum attnd_wire_type type;
    const uint8_t *payload;
    struct both both;
    size_t bytes;
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        open_both(&both, cases[i].is_signed);
        put_length(&both, cases[i].length);
        assert_int_equal(attnd_wire_receive(&both.b), 0);
        assert_int_equal(attnd_wire_look(&both.b, &type, &payload, &bytes), cases[i].code);
        close_both(&both);
    }
}

static void whoever_does_not_read_is_not_written_for(void **state)
{
    struct both both;
    uint8_t *frame = calloc(1, ATTND_WIRE_PAYLOAD_MAX - 1);
    enum attnd_wire_type type;
    const uint8_t *payload;
    size_t bytes, sent = 0, got = 0;
    (void)state;

    assert_non_null(frame);
    open_both(&both, 1);
    assert_int_equal(attnd_wire_send(&both.a, ATTND_WIRE_PEER, frame, ATTND_WIRE_PAYLOAD_MAX),
                     -ATTND_E_FULL);
    while (attnd_wire_send(&both.a, ATTND_WIRE_PEER, frame, ATTND_WIRE_PAYLOAD_MAX - 1) == 0)
        sent++;
    assert_true(sent > 1 && attnd_wire_waiting(&both.a) <= ATTND_WIRE_OUT_MAX);
    while (got < sent) { /* nothing of it is lost */
        assert_int_equal(attnd_wire_flush(&both.a), 0);
        assert_int_equal(attnd_wire_receive(&both.b), 0);
        if (attnd_wire_look(&both.b, &type, &payload, &bytes) != 1)
            continue;
        assert_int_equal(bytes, ATTND_WIRE_PAYLOAD_MAX - 1);
        attnd_wire_taken(&both.b);
        got++;
    }
    close_both(&both);
    free(frame);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_whole_and_in_order),
        cmocka_unit_test(a_frame_that_is_not_all_there_is_none_yet),
        cmocka_unit_test(a_length_that_nobody_may_have_is_refused_before_it_is_read),
        cmocka_unit_test(whoever_does_not_read_is_not_written_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
