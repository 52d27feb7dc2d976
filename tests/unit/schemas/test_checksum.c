/*
 * test_checksum.c - a command is taken for whole only when it is.
 *
 * What a reader across a bus may see too early is an old lap's slot with some of its 16-byte
 * vectors already new. Commands of neighbouring laps often differ in little, or in nothing but
 * their number.
 */
#include "schemas/checksum.h"
#include "service/supervise/queue.h"
#include "tests/support/harness/check.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 200000u
#define VECTORS (sizeof(struct attnd_command) / 16)

static uint64_t seed;

static int whole(const struct attnd_command *command, uint32_t index)
{
    return command->checksum == attnd_checksum(command, index);
}

/* A run as the daemon pushes it: most of its words are small, many are zero. */
static struct attnd_command random_command(struct prng *prng)
{
    struct attnd_command command = {.kind = ATTND_COMMAND_RUN};

    command.run = (uint32_t)(prng_next(prng) % 8);
    command.tag = command.run;
    command.set_version = (uint32_t)(prng_next(prng) % 3);
    command.page_size = 16;
    command.pages = 64;
    command.body = (struct attnd_run){.kind = ATTND_RUN_ATTEND,
                                      .layer = (uint32_t)(prng_next(prng) % 4),
                                      .items = 8,
                                      .plan_offset_bytes = prng_next(prng) % 4 * 4096,
                                      .q = {.offset_bytes = prng_next(prng) % 4 * 512},
                                      .o = {.offset_bytes = prng_next(prng) % 4 * 512},
                                      .mailbox = ATTND_NONE};
    command.k.offset_bytes = prng_next(prng) % 4 * 65536;
    return command;
}

static void what_the_queue_pushes_is_whole(void **state)
{
    struct prng prng = prng_fork(seed, 1);
    struct attnd_fault fault = {0};
    struct attnd_queue *queue;
    (void)state;

    CHECK_EQUAL(attnd_queue_new(65536, 0, &queue, &fault), 0);
    const char *base = queue->segment.address;
    const struct attnd_command *slots = (const void *)(base + queue->head->commands_offset_bytes);
    for (uint32_t i = 0; i < ATTND_QUEUE_RUNS; i++) {
        struct attnd_command command = random_command(&prng);
        CHECK_EQUAL(attnd_queue_push(queue, &command), 0);
        CHECK(whole(&slots[i], i));
        CHECK(!whole(&slots[i], i + queue->head->ring_entries)); /* a lap later it is old */
    }
    attnd_queue_free(queue);
}

static void a_mixture_of_two_laps_is_not_whole(void **state)
{
    struct prng prng = prng_fork(seed, 2);
    (void)state;

    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t index = (uint32_t)prng_next(&prng);
        struct attnd_command old = random_command(&prng), new = random_command(&prng);
        old.checksum = attnd_checksum(&old, index);
        new.checksum = attnd_checksum(&new, index + 1024);
        struct attnd_command seen = old;
        const uint64_t arrived = prng_next(&prng) % (1u << VECTORS);
        for (uint32_t v = 0; v < VECTORS; v++)
            if (arrived >> v & 1)
                memcpy((char *)&seen + 16 * v, (const char *)&new + 16 * v, 16);
        CHECK_EQUAL(whole(&seen, index + 1024), memcmp(&seen, &new, sizeof(seen)) == 0);
    }
}

static void the_same_command_again_is_another(void **state)
{
    struct prng prng = prng_fork(seed, 3);
    (void)state;

    for (uint32_t index = 0; index < 4096; index++) {
        struct attnd_command command = random_command(&prng);
        command.checksum = attnd_checksum(&command, index);
        CHECK(whole(&command, index));
        CHECK(!whole(&command, index + 1024));
    }
}

static void no_bit_may_differ(void **state)
{
    struct prng prng = prng_fork(seed, 4);
    struct attnd_command command = random_command(&prng);
    (void)state;

    command.checksum = attnd_checksum(&command, 77);
    for (uint32_t bit = 0; bit < 8 * sizeof(command); bit++) {
        struct attnd_command changed = command;
        ((uint8_t *)&changed)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!whole(&changed, 77));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_queue_pushes_is_whole),
        cmocka_unit_test(a_mixture_of_two_laps_is_not_whole),
        cmocka_unit_test(the_same_command_again_is_another),
        cmocka_unit_test(no_bit_may_differ),
    };

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
