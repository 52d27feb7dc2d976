/* test_auth.c - who has the key, and what of a link can be forged. */
#include "service/mover/auth.h"

#include "schemas/errors.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const uint8_t nonces[2][ATTND_AUTH_BYTES] = {{1, 2, 3}, {4, 5, 6}};

static void begin(struct attnd_auth *auth, const char *text, uint8_t own)
{
    struct attnd_auth_key key = {.bytes = strlen(text)};

    memcpy(key.data, text, key.bytes);
    assert_int_equal(attnd_auth_begin(auth, &key, own, nonces), 0);
}

static void a_frame_is_good_once_and_in_its_place(void **state)
{
    uint8_t first[ATTND_AUTH_BYTES], second[ATTND_AUTH_BYTES], back[ATTND_AUTH_BYTES];
    char frame[] = "a frame", other[] = "b frame";
    struct attnd_auth a, b, again;
    (void)state;

    begin(&a, "the key of both of them", 0);
    begin(&b, "the key of both of them", 1);
    assert_int_equal(attnd_auth_sign(&a, frame, sizeof(frame), first), 0);
    assert_int_equal(attnd_auth_sign(&a, frame, sizeof(frame), second), 0);
    assert_int_equal(attnd_auth_sign(&b, frame, sizeof(frame), back), 0);
    assert_memory_not_equal(first, second, sizeof(first));
    assert_memory_not_equal(first, back, sizeof(first)); /* it is not this side's own, come back */

    again = b;
    assert_int_equal(attnd_auth_check(&again, frame, sizeof(frame), second), -ATTND_E_PERMISSION);
    again = b;
    assert_int_equal(attnd_auth_check(&again, other, sizeof(other), first), -ATTND_E_PERMISSION);
    again = b;
    assert_int_equal(attnd_auth_check(&again, frame, sizeof(frame), back), -ATTND_E_PERMISSION);
    assert_int_equal(attnd_auth_check(&b, frame, sizeof(frame), first), 0);
    again = b;
    assert_int_equal(attnd_auth_check(&again, frame, sizeof(frame), first), -ATTND_E_PERMISSION);
    assert_int_equal(attnd_auth_check(&b, frame, sizeof(frame), second), 0);
    for (size_t i = 0; i < sizeof(back); i++) {
        again = a;
        back[i] ^= 1;
        assert_int_equal(attnd_auth_check(&again, frame, sizeof(frame), back), -ATTND_E_PERMISSION);
        back[i] ^= 1;
    }
    assert_int_equal(attnd_auth_check(&a, frame, sizeof(frame), back), 0);
}

static void another_key_or_nonce_signs_otherwise(void **state)
{
    uint8_t one[ATTND_AUTH_BYTES], other[ATTND_AUTH_BYTES], turned[2][ATTND_AUTH_BYTES];
    struct attnd_auth_key key = {.bytes = 16, .data = "0123456789abcdef"};
    struct attnd_auth auth;
    (void)state;

    assert_int_equal(attnd_auth_begin(&auth, &key, 0, nonces), 0);
    assert_int_equal(attnd_auth_sign(&auth, "x", 1, one), 0);
    memcpy(turned[0], nonces[1], sizeof(turned[0]));
    memcpy(turned[1], nonces[0], sizeof(turned[1]));
    assert_int_equal(attnd_auth_begin(&auth, &key, 0, (const uint8_t(*)[ATTND_AUTH_BYTES])turned),
                     0);
    assert_int_equal(attnd_auth_sign(&auth, "x", 1, other), 0);
    assert_memory_not_equal(one, other, sizeof(one));
    key.data[15] ^= 1;
    assert_int_equal(attnd_auth_begin(&auth, &key, 0, nonces), 0);
    assert_int_equal(attnd_auth_sign(&auth, "x", 1, other), 0);
    assert_memory_not_equal(one, other, sizeof(one));
}

/* RFC 4231 and FIPS 180 are libcrypto's to keep; this is what the link makes of them, computed by
 * another program (python3: hmac, hashlib). */
static void signatures_are_what_they_were(void **state)
{
    static const uint8_t wanted[ATTND_AUTH_BYTES] = {
        0xf1, 0xb0, 0x4a, 0xf1, 0xbe, 0x9f, 0x03, 0xfd, 0x62, 0xfe, 0xcc,
        0x24, 0x1d, 0x7a, 0x74, 0x36, 0x33, 0xeb, 0x19, 0x6a, 0x84, 0x8b,
        0xec, 0x44, 0x8e, 0x3a, 0x9d, 0x39, 0x36, 0x22, 0x27, 0x52};
    uint8_t signature[ATTND_AUTH_BYTES];
    struct attnd_auth auth;
    (void)state;

    begin(&auth, "0123456789abcdef", 0);
    assert_int_equal(attnd_auth_sign(&auth, "frame", 5, signature), 0);
    assert_memory_equal(signature, wanted, sizeof(wanted));
}

static void write_key(const char *path, const char *text, mode_t mode)
{
    (void)unlink(path);
    const int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void a_key_is_a_file_of_16_bytes_that_nobody_else_reads(void **state)
{
    struct attnd_auth_key key;
    char path[64], why[96] = "";
    (void)state;

    snprintf(path, sizeof(path), "/tmp/attnd-test-auth-%d", (int)getpid());
    write_key(path, "0123456789abcdef\n", 0600);
    assert_int_equal(attnd_auth_load(path, &key, why, sizeof(why)), 0);
    assert_int_equal(key.bytes, 16);
    write_key(path, "0123456789abcde\n\n\n", 0600);
    assert_true(attnd_auth_load(path, &key, why, sizeof(why)) < 0);
    assert_non_null(strstr(why, "15 bytes"));
    write_key(path, "0123456789abcdef", 0640);
    assert_true(attnd_auth_load(path, &key, why, sizeof(why)) < 0);
    assert_non_null(strstr(why, "640"));
    assert_int_equal(unlink(path), 0);
    assert_true(attnd_auth_load(path, &key, why, sizeof(why)) < 0);
    assert_true(attnd_auth_load("/tmp", &key, why, sizeof(why)) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_is_good_once_and_in_its_place),
        cmocka_unit_test(another_key_or_nonce_signs_otherwise),
        cmocka_unit_test(signatures_are_what_they_were),
        cmocka_unit_test(a_key_is_a_file_of_16_bytes_that_nobody_else_reads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
