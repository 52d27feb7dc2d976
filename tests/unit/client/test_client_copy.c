/* test_client_copy.c - an array arrives in the arena as it is, of any length, and nothing beside
 * it. */
#include "client/submit.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROOM_BYTES (1u << 17)
#define POISON 0xa5

static uint64_t seed;

static void bytes_arrive_and_nothing_beside_them_changes(void **state)
{
    const uint32_t cases = (uint32_t)test_number("ATTND_CASES", 2000);
    uint8_t *room = aligned_alloc(ATTND_CACHE_LINE, ROOM_BYTES), *array = malloc(ROOM_BYTES);

    (void)state;
    assert_true(room && array);
    for (uint32_t i = 0; i < ROOM_BYTES; i++)
        array[i] = (uint8_t)(i * 31 + (i >> 8));
    for (uint32_t c = 0; c < cases; c++) {
        struct prng prng = prng_fork(seed, c);
        const uint32_t at = prng_below(&prng, 2) ? 4 * prng_below(&prng, 64) : 64;
        const uint32_t from = 4 * prng_below(&prng, 64);
        const uint32_t most = prng_below(&prng, 2) ? 1024 : ROOM_BYTES - 256;
        const uint32_t bytes = 4 * prng_below(&prng, (most - (at > from ? at : from)) / 4 + 1);

        memset(room, POISON, ROOM_BYTES);
        attnd_copy_out(room + at, array + from, bytes);
        if (memcmp(room + at, array + from, bytes) != 0)
            fail_msg("ATTND_SEED=%llu case %u", (unsigned long long)seed, c);
        for (uint32_t i = 0; i < ROOM_BYTES; i++)
            if ((i < at || i >= at + bytes) && room[i] != POISON)
                fail_msg("ATTND_SEED=%llu case %u, byte %u", (unsigned long long)seed, c, i);
    }
    free(room);
    free(array);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive_and_nothing_beside_them_changes),
    };

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
