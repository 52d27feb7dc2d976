/* test_prefix.c - the cache of computed prefix pages, alone and against a model of it; and the
 * grouping of requests by what they share. */
#include "bench/replay/cascade.h"
#include "bench/replay/prefix.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t keys[4] = {101, 102, 103, 104};
static const int32_t pages[4] = {1, 2, 3, 4};

/* A cache of @room pages in which a request has computed pages 1..4 and left. */
static void fill(struct replay_prefix *cache, uint32_t room)
{
    assert_int_equal(replay_prefix_init(cache, room), 0);
    for (int i = 0; i < 4; i++)
        assert_true(replay_prefix_begin(cache, keys[i], pages[i]));
    for (int i = 0; i < 4; i++)
        assert_true(replay_prefix_ready(cache, keys[i], pages[i]));
    replay_prefix_unuse(cache, keys, pages, 4);
}

static void a_page_being_computed_holds_followers_back(void **state)
{
    struct replay_prefix cache;
    int32_t found[4];
    bool filling;

    (void)state;
    assert_int_equal(replay_prefix_init(&cache, 8), 0);
    assert_int_equal(replay_prefix_match(&cache, keys, 4, found, &filling), 0);
    assert_false(filling);
    assert_true(replay_prefix_begin(&cache, keys[0], 1));
    assert_true(replay_prefix_begin(&cache, keys[1], 2));
    assert_true(replay_prefix_ready(&cache, keys[0], 1));
    assert_int_equal(replay_prefix_match(&cache, keys, 4, found, &filling), 1);
    assert_true(filling);
    assert_int_equal(found[0], 1);
    replay_prefix_free(&cache);
}

static void a_page_in_use_is_never_evicted(void **state)
{
    struct replay_prefix cache;
    int32_t evicted[4], found[4];
    bool filling;

    (void)state;
    fill(&cache, 4);
    replay_prefix_use(&cache, keys, 2);
    assert_int_equal(replay_prefix_evict(&cache, 4, evicted), 2);
    assert_int_equal(replay_prefix_match(&cache, keys, 4, found, &filling), 2);
    replay_prefix_unuse(&cache, keys, pages, 2);
    assert_int_equal(replay_prefix_evict(&cache, 4, evicted), 2);
    assert_int_equal(replay_prefix_match(&cache, keys, 4, found, &filling), 0);
    replay_prefix_free(&cache);
}

static void the_end_of_a_prefix_is_evicted_before_its_beginning(void **state)
{
    struct replay_prefix cache;
    int32_t evicted[4];

    (void)state;
    fill(&cache, 4);
    assert_int_equal(replay_prefix_evict(&cache, 1, evicted), 1);
    assert_int_equal(evicted[0], 4);
    assert_int_equal(replay_prefix_evict(&cache, 3, evicted), 3);
    assert_int_equal(evicted[0], 3);
    assert_int_equal(evicted[2], 1);
    replay_prefix_free(&cache);
}

static void a_full_cache_takes_nothing_and_a_known_key_is_not_replaced(void **state)
{
    struct replay_prefix cache;

    (void)state;
    fill(&cache, 4);
    assert_true(replay_prefix_full(&cache));
    assert_false(replay_prefix_begin(&cache, 999, 9));
    replay_prefix_free(&cache);
    fill(&cache, 5);
    assert_true(replay_prefix_known(&cache, keys[2]));
    assert_false(replay_prefix_begin(&cache, keys[2], 9));
    /* somebody's own copy of a page is not the cache's */
    assert_false(replay_prefix_ready(&cache, keys[2], 9));
    replay_prefix_unuse(&cache, &keys[2], &(int32_t){9}, 1);
    assert_int_equal(cache.idle, 4);
    replay_prefix_free(&cache);
}

static void a_cache_of_no_pages_is_legal(void **state)
{
    struct replay_prefix cache;
    int32_t found[4];
    bool filling;

    (void)state;
    assert_int_equal(replay_prefix_init(&cache, 0), 0);
    assert_true(replay_prefix_full(&cache));
    assert_false(replay_prefix_begin(&cache, 1, 1));
    assert_int_equal(replay_prefix_match(&cache, keys, 4, found, &filling), 0);
    assert_int_equal(replay_prefix_evict(&cache, 4, found), 0);
    replay_prefix_free(&cache);
}

static void keys_are_equal_exactly_as_long_as_the_prompts_are(void **state)
{
    static const uint64_t a[] = {5, 6, 7}, b[] = {5, 6, 8}, shifted[] = {6, 6, 7};
    static const uint32_t sizes[] = {1, 16, 24, 100, 512, 700, 1024};

    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        uint32_t count = 3 * 512 / sizes[s];
        uint64_t x[1536], y[1536], z[1536];

        replay_prefix_keys(a, 512, sizes[s], count, x);
        replay_prefix_keys(b, 512, sizes[s], count, y);
        replay_prefix_keys(shifted, 512, sizes[s], count, z);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(x[i] == y[i], (i + 1) * sizes[s] <= 1024);
            assert_int_not_equal(x[i], z[i]); /* equal blocks behind unequal ones are not equal */
        }
    }
}

/* What the cache must know, written the slow way. */
struct model_page {
    int32_t page;
    uint32_t users;
    int state; /* 0 absent, 1 filling, 2 ready */
    uint64_t idle_since;
};

enum { MODEL_KEYS = 40, MODEL_ROOM = 16 };

struct model {
    struct model_page page[MODEL_KEYS];
    uint32_t held;
    uint64_t step;
};

/* All in few buckets: chains get long. */
static uint64_t model_key(uint32_t k)
{
    return k * 16;
}

static void begin_one(struct model *model, struct replay_prefix *cache, uint32_t k)
{
    const int room = !model->page[k].state && model->held < MODEL_ROOM;
    const int32_t page = (int32_t)model->step;

    assert_int_equal(replay_prefix_begin(cache, model_key(k), page), room);
    if (room) {
        model->page[k] = (struct model_page){.page = page, .users = 1, .state = 1};
        model->held++;
    }
}

static void finish_one(struct model *model, struct replay_prefix *cache, uint32_t k)
{
    struct model_page *m = &model->page[k];

    assert_int_equal(replay_prefix_ready(cache, model_key(k), m->page), m->state == 1);
    m->state = m->state == 1 ? 2 : m->state;
}

static void use_one(struct model *model, struct replay_prefix *cache, uint32_t k)
{
    const uint64_t key = model_key(k);

    if (model->page[k].state != 2)
        return;
    replay_prefix_use(cache, &key, 1);
    model->page[k].users++;
}

static void unuse_one(struct model *model, struct replay_prefix *cache, uint32_t k)
{
    struct model_page *m = &model->page[k];
    const uint64_t key = model_key(k);

    if (m->state != 2 || !m->users)
        return;
    replay_prefix_unuse(cache, &key, &m->page, 1);
    if (!--m->users)
        m->idle_since = model->step;
}

static void evict_one(struct model *model, struct replay_prefix *cache, uint32_t k)
{
    struct model_page *oldest = NULL;
    int32_t out;

    (void)k;
    for (int i = 0; i < MODEL_KEYS; i++) {
        struct model_page *m = &model->page[i];
        if (m->state == 2 && !m->users && (!oldest || m->idle_since < oldest->idle_since))
            oldest = m;
    }
    assert_int_equal(replay_prefix_evict(cache, 1, &out), oldest != NULL);
    if (oldest) {
        assert_int_equal(out, oldest->page);
        oldest->state = 0;
        model->held--;
    }
}

static void random_use_agrees_with_a_model(void **state)
{
    static void (*const acts[])(struct model *, struct replay_prefix *,
                                uint32_t) = {begin_one, finish_one, use_one, unuse_one, evict_one};
    struct prng prng = {test_seed()};
    struct model model = {.held = 0};
    struct replay_prefix cache;

    (void)state;
    assert_int_equal(replay_prefix_init(&cache, MODEL_ROOM), 0);
    for (model.step = 1; model.step <= 20000; model.step++) {
        const uint32_t k = prng_below(&prng, MODEL_KEYS);
        const struct model_page *m = &model.page[k];
        const uint64_t key = model_key(k);
        bool filling;
        int32_t out;

        acts[prng_below(&prng, 5)](&model, &cache, k);
        assert_int_equal(replay_prefix_match(&cache, &key, 1, &out, &filling), m->state == 2);
        assert_int_equal(filling, m->state == 1);
        if (m->state == 2)
            assert_int_equal(out, m->page);
    }
    replay_prefix_free(&cache);
}

/* ---- grouping ---- */

static uint64_t saved_by(const struct replay_cascade_group *groups, uint32_t count)
{
    uint64_t saved = 0;

    for (uint32_t g = 0; g < count; g++)
        saved += (uint64_t)(groups[g].end - groups[g].begin - 1) * groups[g].pages;
    return saved;
}

static void requests_with_a_common_beginning_are_grouped(void **state)
{
    static const int32_t a[] = {1, 2, 3, 10}, b[] = {1, 2, 3, 11}, c[] = {1, 2, 12}, d[] = {7, 8};
    struct replay_cascade_list lists[] = {{d, 2, 0}, {a, 4, 1}, {c, 3, 2}, {b, 4, 3}, {NULL, 0, 4}};
    struct replay_cascade_group groups[5];
    uint32_t count = replay_cascade_group(lists, 5, groups);

    (void)state;
    /* three together share two pages (saves 4); two of them share three (saves 3) */
    assert_int_equal(count, 3);
    assert_int_equal(saved_by(groups, count), 4);
    assert_int_equal(lists[0].tag, 4);
    assert_int_equal(groups[1].pages, 2);
    assert_int_equal(groups[1].end - groups[1].begin, 3);
    assert_int_equal(groups[2].pages, 0);
}

static uint32_t common(const struct replay_cascade_list *lists, uint32_t begin, uint32_t end)
{
    for (uint32_t n = 0;; n++)
        for (uint32_t i = begin; i < end; i++)
            if (n >= lists[i].count || lists[i].pages[n] != lists[begin].pages[n])
                return n;
}

/* All ways to cut @count ordered lists. */
static uint64_t best_by_force(const struct replay_cascade_list *lists, uint32_t count)
{
    uint64_t best = 0;

    for (uint32_t cuts = 0; cuts < 1u << count; cuts += 2) { /* bit i: a cut before list i */
        uint64_t saved = 0;
        uint32_t begin = 0;

        for (uint32_t i = 1; i <= count; i++)
            if (i == count || (cuts >> i & 1)) {
                saved += (uint64_t)(i - begin - 1) * common(lists, begin, i);
                begin = i;
            }
        best = saved > best ? saved : best;
    }
    return best;
}

static void no_cut_reads_fewer_pages(void **state)
{
    uint64_t seed = test_seed();

    (void)state;
    for (uint64_t round = 0; round < 300; round++) {
        struct prng prng = prng_fork(seed, round);
        struct replay_cascade_list lists[9];
        struct replay_cascade_group groups[9];
        int32_t page_lists[9][6];
        uint32_t count = 1 + prng_below(&prng, 9), groups_count, members = 0;

        for (uint32_t i = 0; i < count; i++) {
            for (int j = 0; j < 6; j++)
                page_lists[i][j] = (int32_t)prng_below(&prng, 2) + 10 * j;
            lists[i] = (struct replay_cascade_list){page_lists[i], prng_below(&prng, 7), i};
        }
        groups_count = replay_cascade_group(lists, count, groups);
        for (uint32_t g = 0; g < groups_count; g++) {
            assert_int_equal(groups[g].begin, members);
            members = groups[g].end;
            assert_true(groups[g].pages <= common(lists, groups[g].begin, groups[g].end));
        }
        assert_int_equal(members, count);
        assert_int_equal(saved_by(groups, groups_count), best_by_force(lists, count));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_being_computed_holds_followers_back),
        cmocka_unit_test(a_page_in_use_is_never_evicted),
        cmocka_unit_test(the_end_of_a_prefix_is_evicted_before_its_beginning),
        cmocka_unit_test(a_full_cache_takes_nothing_and_a_known_key_is_not_replaced),
        cmocka_unit_test(a_cache_of_no_pages_is_legal),
        cmocka_unit_test(keys_are_equal_exactly_as_long_as_the_prompts_are),
        cmocka_unit_test(random_use_agrees_with_a_model),
        cmocka_unit_test(requests_with_a_common_beginning_are_grouped),
        cmocka_unit_test(no_cut_reads_fewer_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
