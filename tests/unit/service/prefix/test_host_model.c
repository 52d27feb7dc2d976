/*
 * test_host_model.c - the dictionary of the host cache against a plainer one, at random.
 *
 * The model is a list of blocks in the order of their last use, with the places of each. It says
 * what must be found, which block has to go when there is no room, and that no place is ever two
 * blocks'. Operations draw their block by what the model has, so they make sense at any time.
 */
#include "service/prefix/host.h"
#include "tests/support/harness/check.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 300u
#define OPS 400u
#define KEYS 60u
#define SPACES 3u
#define PLACES_MAX 160u
#define BLOCK_PAGES 5u

/* One that is there, oldest use first; those that are held stand where they stood. */
struct entry {
    uint32_t block, space, key, pages, holds;
    int filled, forgotten;
    uint64_t used;
    uint32_t places[BLOCK_PAGES];
};

static struct {
    struct attnd_host *host;
    struct entry entry[PLACES_MAX];
    uint32_t count, places;
    uint64_t clock, evicted;
} model;

static struct attnd_block_key key_of(uint32_t key)
{
    return (struct attnd_block_key){{key % 7, key / 7}}; /* words that are alike */
}

static struct entry *find(uint32_t space, uint32_t key)
{
    for (uint32_t i = 0; i < model.count; i++)
        if (model.entry[i].space == space && model.entry[i].key == key && !model.entry[i].forgotten)
            return &model.entry[i];
    return NULL;
}

static void take_out(struct entry *entry)
{
    *entry = model.entry[--model.count];
}

static uint32_t used_places(void)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < model.count; i++)
        used += model.entry[i].pages;
    return used;
}

/* The one that was used least recently among those that nobody holds. */
static struct entry *oldest(void)
{
    struct entry *found = NULL;
    for (uint32_t i = 0; i < model.count; i++)
        if (!model.entry[i].holds && (!found || model.entry[i].used < found->used))
            found = &model.entry[i];
    return found;
}

static void add(uint32_t space, uint32_t key, uint32_t pages)
{
    const struct attnd_host_block block = {
        .key = key_of(key), .space = space, .pages = pages, .publisher = key, .depth = pages};
    struct entry *there = find(space, key);

    if (there)
        return;
    uint32_t free_places = model.places - used_places(), could = free_places;
    for (uint32_t i = 0; i < model.count; i++)
        could += model.entry[i].holds ? 0 : model.entry[i].pages;
    uint32_t made = attnd_host_add(model.host, &block);
    CHECK_EQUAL(made != ATTND_NONE, could >= pages);
    if (made == ATTND_NONE)
        return; /* and nothing went for it */
    while (model.places - used_places() < pages) {
        take_out(oldest());
        model.evicted++;
    }
    struct entry *entry = &model.entry[model.count++];
    *entry = (struct entry){
        .block = made, .space = space, .key = key, .pages = pages, .holds = 1, .used = 0};
    attnd_host_places(model.host, made, entry->places);
}

static void drop(struct entry *entry, int filled)
{
    if (filled && !entry->filled)
        attnd_host_at(model.host, entry->block)->filled = 1;
    entry->filled |= filled;
    attnd_host_drop(model.host, entry->block);
    if (--entry->holds)
        return;
    entry->used = ++model.clock;
    if (entry->forgotten || !entry->filled)
        take_out(entry);
}

static void forget(struct entry *entry)
{
    attnd_host_forget(model.host, entry->block);
    entry->forgotten = 1;
    if (!entry->holds)
        take_out(entry);
}

static void forget_space(uint32_t space)
{
    attnd_host_forget_space(model.host, space);
    for (uint32_t i = model.count; i-- > 0;)
        if (model.entry[i].space == space) {
            model.entry[i].forgotten = 1;
            if (!model.entry[i].holds)
                take_out(&model.entry[i]);
        }
}

static void check_all(void)
{
    uint8_t owned[PLACES_MAX] = {0};
    uint32_t visible = 0, in_space[SPACES] = {0};

    for (uint32_t space = 0; space < SPACES; space++)
        for (uint32_t key = 0; key < KEYS; key++) {
            const struct attnd_block_key name = key_of(key);
            const struct entry *entry = find(space, key);
            CHECK_EQUAL(attnd_host_find(model.host, space, &name),
                        entry ? entry->block : ATTND_NONE);
        }
    for (uint32_t i = 0; i < model.count; i++) {
        const struct entry *entry = &model.entry[i];
        uint32_t places[BLOCK_PAGES];
        attnd_host_places(model.host, entry->block, places);
        CHECK(memcmp(places, entry->places, entry->pages * sizeof(places[0])) == 0);
        for (uint32_t p = 0; p < entry->pages; p++) {
            CHECK(places[p] < model.places);
            CHECK_EQUAL(owned[places[p]]++, 0);
        }
        visible += !entry->forgotten;
        in_space[entry->space] += !entry->forgotten;
    }
    const struct attnd_host_info info = attnd_host_info(model.host);
    CHECK_EQUAL(info.places, model.places);
    CHECK_EQUAL(info.places_used, used_places());
    CHECK_EQUAL(info.blocks, visible);
    CHECK_EQUAL(info.evicted, model.evicted);
    for (uint32_t space = 0; space < SPACES; space++)
        CHECK_EQUAL(attnd_host_in_space(model.host, space), in_space[space]);
}

static void one(struct prng *prng)
{
    struct entry *entry = model.count ? &model.entry[prng_below(prng, model.count)] : NULL;

    switch (prng_below(prng, 12)) {
    case 0:
        if (model.places < PLACES_MAX - 20) {
            uint32_t more = 1 + prng_below(prng, 20);
            CHECK_EQUAL(attnd_host_grow(model.host, more), 0);
            model.places += more;
        }
        return;
    case 1:
        if (entry && !entry->forgotten) {
            attnd_host_hold(model.host, entry->block);
            entry->holds++;
        }
        return;
    case 2:
    case 3:
    case 4:
        if (entry && entry->holds)
            drop(entry, prng_below(prng, 4) > 0);
        return;
    case 5:
        if (entry && !entry->forgotten) {
            attnd_host_use(model.host, entry->block);
            entry->used = entry->holds ? entry->used : ++model.clock;
        }
        return;
    case 6:
        if (entry)
            forget(entry);
        return;
    case 7:
        if (prng_below(prng, 20) == 0)
            forget_space(prng_below(prng, SPACES));
        return;
    default:
        add(prng_below(prng, SPACES), prng_below(prng, KEYS), 1 + prng_below(prng, BLOCK_PAGES));
    }
}

static void it_is_what_a_plain_dictionary_is(void **state)
{
    uint64_t seed = test_seed();
    (void)state;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct prng prng = prng_fork(seed, round);
        memset(&model, 0, sizeof(model));
        CHECK_EQUAL(attnd_host_new(&model.host), 0);
        for (uint32_t i = 0; i < OPS; i++) {
            one(&prng);
            check_all();
        }
        attnd_host_free(model.host);
    }
}

static void it_cannot_grow_beyond_its_numbers(void **state)
{
    (void)state;
    memset(&model, 0, sizeof(model));
    CHECK_EQUAL(attnd_host_new(&model.host), 0);
    CHECK_EQUAL(attnd_host_grow(model.host, UINT32_MAX), -ATTND_E_RANGE);
    CHECK_EQUAL(attnd_host_grow(model.host, 3), 0);
    CHECK_EQUAL(attnd_host_grow(model.host, (1u << 31) - 2), -ATTND_E_RANGE);
    model.places = 3;
    add(0, 1, 4); /* no room, however much goes */
    add(0, 1, 3);
    check_all();
    attnd_host_free(model.host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_what_a_plain_dictionary_is),
        cmocka_unit_test(it_cannot_grow_beyond_its_numbers),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
