/* test_array.c - long arrays cost what is touched of them, and go whole. */
#include "ipc/array.h"
#include "ipc/closer.h"

#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_BYTES ((32u << 20) + 24u) /* no whole pages */
#define PAGES (LONG_BYTES / 4096u + 1)

static unsigned char resident[PAGES];

static uint32_t touched(void *array)
{
    uint32_t count = 0;

    assert_int_equal(sysconf(_SC_PAGESIZE), 4096);
    assert_int_equal(mincore(array, LONG_BYTES, resident), 0);
    for (uint32_t i = 0; i < PAGES; i++)
        count += resident[i] & 1;
    return count;
}

static void until_nothing_is_held(void)
{
    while (attnd_closer_held().count)
        usleep(1000);
}

/* The heap keeps what was freed, and calloc() would fill that with zeros. */
static void a_long_one_is_not_touched_whatever_the_heap_has(void **state)
{
    (void)state;
#ifdef M_TRIM_THRESHOLD
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, -1);
#endif
    char *parts[4];
    for (int i = 0; i < 4; i++) {
        parts[i] = malloc(16u << 20);
        assert_non_null(parts[i]);
        memset(parts[i], 0xff, 16u << 20);
    }
    for (int i = 0; i < 4; i++)
        free(parts[i]);
    char *array = attnd_array_new(LONG_BYTES);
    assert_non_null(array);
    assert_int_equal(touched(array), 0);
    assert_int_equal(array[LONG_BYTES - 1], 0);
    assert_int_equal(touched(array), 1);
    attnd_array_free(array, LONG_BYTES);
    until_nothing_is_held();
}

static void all_of_a_long_one_goes(void **state)
{
    (void)state;
    char *array = attnd_array_new(LONG_BYTES);
    assert_non_null(array);
    array[LONG_BYTES / 2] = 1;
    attnd_array_free(array, LONG_BYTES);
    until_nothing_is_held();
    for (uint32_t i = 0; i < PAGES; i++) {
        assert_int_equal(mincore(array + (size_t)i * 4096, 4096, resident), -1);
        assert_int_equal(errno, ENOMEM);
    }
}

static void a_short_one_is_zeros_and_goes_at_once(void **state)
{
    (void)state;
    char *array = attnd_array_new(100);
    assert_non_null(array);
    for (int i = 0; i < 100; i++)
        assert_int_equal(array[i], 0);
    attnd_array_free(array, 100);
    attnd_array_free(NULL, LONG_BYTES);
    assert_int_equal(attnd_closer_held().count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_one_is_not_touched_whatever_the_heap_has),
        cmocka_unit_test(all_of_a_long_one_goes),
        cmocka_unit_test(a_short_one_is_zeros_and_goes_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
