/* test_client_siphash.c - keys of blocks: the hash is the published one, however it is fed. */
#include "client/attnd.h"
#include "client/siphash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Of the key 00 01 .. 0f and the text 00 01 .. (length - 1), from the authors' test vectors. */
static const struct {
    size_t length;
    uint8_t hash[16];
} vectors[] = {
    {0,
     {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02,
      0x93}},
    {1,
     {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc,
      0x45}},
};

static void hash(const uint8_t *text, size_t bytes, size_t step, uint64_t out[2])
{
    struct attnd_siphash state;
    uint8_t key[16];
    for (uint8_t i = 0; i < 16; i++)
        key[i] = i;
    attnd_siphash_begin(&state, key);
    for (size_t at = 0; at < bytes; at += step)
        attnd_siphash_feed(&state, text + at, bytes - at < step ? bytes - at : step);
    attnd_siphash_end(&state, out);
}

static void it_is_the_published_hash(void **state)
{
    uint8_t text[64];
    (void)state;
    for (uint8_t i = 0; i < 64; i++)
        text[i] = i;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        uint64_t got[2];
        hash(text, vectors[i].length, 1, got);
        assert_memory_equal(got, vectors[i].hash, 16); /* little-endian machines */
    }
}

static void pieces_make_the_same_hash_as_the_whole(void **state)
{
    uint8_t text[61];
    uint64_t whole[2], pieces[2];
    (void)state;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (uint8_t)(i * 37);
    for (size_t bytes = 0; bytes <= sizeof(text); bytes++)
        for (size_t step = 1; step < 20; step++) {
            hash(text, bytes, sizeof(text), whole);
            hash(text, bytes, step, pieces);
            assert_memory_equal(whole, pieces, sizeof(whole));
        }
}

static void a_key_depends_on_salt_parent_and_content(void **state)
{
    const uint8_t salt[16] = {1}, other_salt[16] = {2};
    struct attnd_prefix_key first, again, different[4];
    const int32_t tokens[] = {1, 2, 3}, other_tokens[] = {1, 2, 4};
    (void)state;
    attnd_prefix_key(salt, NULL, tokens, sizeof(tokens), &first);
    attnd_prefix_key(salt, NULL, tokens, sizeof(tokens), &again);
    assert_memory_equal(&first, &again, sizeof(first));
    attnd_prefix_key(other_salt, NULL, tokens, sizeof(tokens), &different[0]);
    attnd_prefix_key(salt, &first, tokens, sizeof(tokens), &different[1]);
    attnd_prefix_key(salt, NULL, other_tokens, sizeof(tokens), &different[2]);
    attnd_prefix_key(salt, NULL, tokens, sizeof(tokens) - 1, &different[3]);
    for (int i = 0; i < 4; i++)
        assert_memory_not_equal(&first, &different[i], sizeof(first));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_published_hash),
        cmocka_unit_test(pieces_make_the_same_hash_as_the_whole),
        cmocka_unit_test(a_key_depends_on_salt_parent_and_content),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
