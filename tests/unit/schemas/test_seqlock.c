/*
 * test_seqlock.c - attnd_change_begin32() and _end32(): what a reader copies between two equal even
 * numbers is of one change.
 */
#include "schemas/atomics.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define WORDS 64u
#define COPIES 300u /* of different changes */

static struct {
    uint32_t sequence, words[WORDS], done;
} shared;

static void the_number_is_odd_while_something_changes(void **state)
{
    uint32_t sequence = 0;
    (void)state;
    for (uint32_t change = 0; change < 3; change++) {
        attnd_change_begin32(&sequence);
        assert_int_equal(sequence, 2 * change + 1);
        attnd_change_end32(&sequence);
        assert_int_equal(sequence, 2 * change + 2);
    }
    sequence = UINT32_MAX - 1; /* it comes round, and stays even */
    attnd_change_begin32(&sequence);
    assert_int_equal(sequence, UINT32_MAX);
    attnd_change_end32(&sequence);
    assert_int_equal(sequence, 0);
}

/* Every word has the number of the change. */
static void *change_all_the_time(void *context)
{
    (void)context;
    for (uint32_t change = 1; !attnd_peek32(&shared.done); change++) {
        attnd_change_begin32(&shared.sequence);
        for (uint32_t i = 0; i < WORDS; i++)
            attnd_poke32(&shared.words[i], change);
        attnd_change_end32(&shared.sequence);
        for (uint32_t i = 0; i < 2 * WORDS; i++) /* room for a reader */
            attnd_relax();
    }
    return NULL;
}

/* Return: 1 the words copied are those of one moment, as the sequence says. */
static int copy(uint32_t words[WORDS])
{
    const uint32_t before = attnd_observe32(&shared.sequence); /* A1 */
    for (uint32_t i = 0; i < WORDS; i++)
        words[i] = attnd_peek32(&shared.words[i]);
    attnd_fence_full();
    return before % 2 == 0 && attnd_peek32(&shared.sequence) == before;
}

static void a_reader_that_sees_one_even_number_has_one_change(void **state)
{
    uint32_t words[WORDS], whole = 0, torn = 0, last = 0;
    pthread_t writer;
    (void)state;
    assert_int_equal(pthread_create(&writer, NULL, change_all_the_time, NULL), 0);
    while (whole < COPIES) {
        if (!copy(words))
            continue;
        whole += words[0] != last;
        last = words[0];
        for (uint32_t i = 1; i < WORDS; i++)
            torn += words[i] != words[0];
    }
    attnd_poke32(&shared.done, 1);
    assert_int_equal(pthread_join(writer, NULL), 0);
    assert_int_equal(torn, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_number_is_odd_while_something_changes),
        cmocka_unit_test(a_reader_that_sees_one_even_number_has_one_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
