/* test_places.c - pages as blocks and fragments, over pools of every layout. */
#include "service/mover/places.h"

#include "ipc/shm.h"
#include "schemas/clock.h"
#include "service/mover/maps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define LAYERS 2u
#define PAGES 8u
#define TOKENS 4u
#define HEADS 3u
#define DIM 5u
#define BYTES 65536u

enum layout { BY_TOKEN, BY_HEAD, WITH_GAPS };

/* A grant of a pool in one memory, whose last page ends where the memory does. */
struct pool {
    Attnd__PeerGrant grant;
    Attnd__PeerMemory memory, *memories[1];
    Attnd__PeerPlane plane[2 * LAYERS], *planes[2 * LAYERS];
    uint32_t page[PAGES];
    int fd;
    uint16_t *address;
};

static void pool_open(struct pool *pool, enum layout layout)
{
    const int64_t gap = layout == WITH_GAPS ? 2 : 0, dim = DIM + gap;
    const int64_t page = TOKENS * HEADS * dim + gap;
    struct attnd_fault fault;

    memset(pool, 0, sizeof(*pool));
    assert_int_equal(attnd_shm_create_unmapped("places", BYTES, &pool->fd, &fault), 0);
    assert_int_equal(attnd_shm_seal(pool->fd, ATTND_SEAL_POOL), 0);
    pool->address = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pool->fd, 0);
    assert_true(pool->address != MAP_FAILED);
    attnd__peer_grant__init(&pool->grant);
    attnd__peer_memory__init(&pool->memory);
    pool->memory.memory_kind = ATTND_KIND_HOST;
    pool->memory.size_bytes = BYTES;
    pool->memories[0] = &pool->memory;
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        attnd__peer_plane__init(&pool->plane[i]);
        pool->plane[i].offset_bytes = BYTES - (2 * LAYERS - i) * (uint64_t)(page * PAGES) * 2;
        pool->plane[i].stride_page = page;
        pool->plane[i].stride_token = layout == BY_HEAD ? dim : HEADS * dim;
        pool->plane[i].stride_head = layout == BY_HEAD ? TOKENS * dim : dim;
        pool->planes[i] = &pool->plane[i];
    }
    for (uint32_t i = 0; i < PAGES; i++)
        pool->page[i] = (i * 5 + 3) % PAGES;
    pool->grant.layers = LAYERS;
    pool->grant.pages = PAGES;
    pool->grant.page_size = TOKENS;
    pool->grant.heads_kv = HEADS;
    pool->grant.dim_qk = pool->grant.dim_vo = DIM;
    pool->grant.dtype = 1; /* fp16 */
    pool->grant.n_memory = 1;
    pool->grant.memory = pool->memories;
    pool->grant.n_k = pool->grant.n_v = LAYERS;
    pool->grant.k = pool->planes;
    pool->grant.v = pool->planes + LAYERS;
    pool->grant.n_page = PAGES;
    pool->grant.page = pool->page;
}

static void pool_close(struct pool *pool)
{
    munmap(pool->address, BYTES);
    close(pool->fd);
}

/* By the formula of a plane, and by nothing that is under test. */
static uint16_t *element(const struct pool *pool, uint32_t plane, uint32_t page, uint32_t token,
                         uint32_t head, uint32_t d)
{
    const Attnd__PeerPlane *at = &pool->plane[plane];

    return pool->address + at->offset_bytes / 2 + page * at->stride_page +
           token * at->stride_token + head * at->stride_head + d;
}

static uint16_t value(uint32_t plane, uint32_t index, uint32_t token, uint32_t head, uint32_t d)
{
    return (uint16_t)(1 + (((plane * PAGES + index) * TOKENS + token) * HEADS + head) * DIM + d);
}

static int visit(const struct pool *pool, int writes)
{
    int wrong = 0;

    for (uint32_t plane = 0; plane < 2 * LAYERS; plane++)
        for (uint32_t i = 0; i < PAGES; i++)
            for (uint32_t e = 0; e < TOKENS * HEADS * DIM; e++) {
                const uint32_t token = e / (HEADS * DIM), head = e / DIM % HEADS, d = e % DIM;
                uint16_t *at = element(pool, plane, pool->page[i], token, head, d);
                if (writes)
                    *at = value(plane, i, token, head, d);
                wrong += *at != value(plane, i, token, head, d);
            }
    return wrong;
}

/* As two movers do it. */
static void move(const struct attnd_places *from, const struct attnd_places *to)
{
    static uint8_t wire[ATTND_FRAGMENT_BYTES];
    const uint64_t total = attnd_fragments(from, LAYERS, 2);

    assert_int_equal(total, attnd_fragments(to, LAYERS, 2));
    for (uint64_t number = 0; number < total; number++) {
        const struct attnd_fragment part = attnd_fragment_at(from, 0, 2, number);
        enum attnd_block_order order = attnd_block_order(from, part.layer, part.half);
        if (order == ATTND_BLOCK_STRIDED)
            order = ATTND_BLOCK_BY_TOKEN;
        for (uint32_t i = 0; i < part.count; i++) {
            attnd_block_gather(from, part.layer, part.half, part.first + i, order, wire);
            attnd_block_scatter(to, part.layer, part.half, part.first + i, order, wire);
        }
    }
}

static void pages_of_any_layout_go_to_any_other(void **state)
{
    (void)state;
    for (int from = BY_TOKEN; from <= WITH_GAPS; from++)
        for (int to = BY_TOKEN; to <= WITH_GAPS; to++) {
            struct attnd_places *givers, *claimers;
            struct pool a, b;
            pool_open(&a, (enum layout)from);
            pool_open(&b, (enum layout)to);
            for (uint32_t i = 0; i < PAGES; i++)
                b.page[i] = (i * 3 + 1) % PAGES;
            assert_int_equal(visit(&a, 1), 0);
            assert_int_equal(attnd_places_new(&a.grant, &a.fd, 0, &givers), 0);
            assert_int_equal(attnd_places_new(&b.grant, &b.fd, 1, &claimers), 0);
            move(givers, claimers);
            assert_int_equal(visit(&b, 0), 0);
            attnd_places_free(givers);
            attnd_places_free(claimers);
            pool_close(&a);
            pool_close(&b);
        }
}

static void refuse(struct pool *pool, int code)
{
    struct attnd_places *places;

    assert_int_equal(attnd_places_new(&pool->grant, &pool->fd, 1, &places), code);
}

static void planes_beyond_their_memory_are_refused(void **state)
{
    struct attnd_places *places;
    struct pool pool;
    Attnd__PeerPlane *last = &pool.plane[2 * LAYERS - 1];
    (void)state;

    pool_open(&pool, BY_TOKEN);
    assert_int_equal(attnd_places_new(&pool.grant, &pool.fd, 1, &places), 0);
    attnd_places_free(places);
    last->offset_bytes += 2; /* the last element of the last page is one too far */
    refuse(&pool, -ATTND_E_RANGE);
    last->offset_bytes = UINT64_MAX - 1;
    refuse(&pool, -ATTND_E_RANGE);
    last->offset_bytes = 0;
    last->stride_page = -1;
    refuse(&pool, -ATTND_E_RANGE);
    last->stride_page = INT64_MAX;
    refuse(&pool, -ATTND_E_RANGE);
    last->stride_page = 0;
    last->stride_head = INT64_MAX / 2;
    refuse(&pool, -ATTND_E_RANGE);
    pool_close(&pool);
}

/* Strides of nothing make a block longer than its memory. */
static void a_block_that_no_page_has_is_refused(void **state)
{
    struct pool pool;
    (void)state;

    pool_open(&pool, BY_TOKEN);
    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        pool.plane[i].stride_page = pool.plane[i].stride_token = pool.plane[i].stride_head = 0;
    pool.grant.page_size = pool.grant.heads_kv = 1u << 16;
    refuse(&pool, -ATTND_E_RANGE);
    pool.grant.page_size = UINT32_MAX;
    pool.grant.heads_kv = UINT32_MAX;
    pool.grant.dim_qk = UINT32_MAX;
    refuse(&pool, -ATTND_E_RANGE);
    pool_close(&pool);
}

static void memory_that_may_shrink_or_is_a_gpus_is_refused(void **state)
{
    struct pool pool;
    (void)state;

    pool_open(&pool, BY_TOKEN);
    pool.memory.memory_kind = ATTND_KIND_DEVICE;
    refuse(&pool, -ATTND_E_UNSUPPORTED);
    pool.memory.memory_kind = ATTND_KIND_HOST;
    const int sealed = pool.fd;
    pool.fd = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(pool.fd, BYTES), 0);
    refuse(&pool, -ATTND_E_PERMISSION);
    close(pool.fd);
    pool.fd = sealed;
    pool.memory.size_bytes = BYTES + 4096;
    refuse(&pool, -ATTND_E_RANGE);
    pool_close(&pool);
}

static void fragments_have_every_block_once(void **state)
{
    struct attnd_places *places;
    struct pool pool;
    (void)state;

    pool_open(&pool, BY_TOKEN);
    assert_int_equal(attnd_places_new(&pool.grant, &pool.fd, 0, &places), 0);
    for (uint32_t halves = 1; halves <= 2; halves++)
        for (uint32_t count = 1; count <= 200; count += 33) {
            uint32_t seen[LAYERS][2][200] = {0};
            places->count = count; /* no block is looked at */
            const uint64_t total = attnd_fragments(places, LAYERS - 1, halves);
            for (uint64_t i = 0; i < total; i++) {
                const struct attnd_fragment part = attnd_fragment_at(places, 1, halves, i);
                assert_true(part.count >= 1 && part.count <= ATTND_FRAGMENT_BLOCKS);
                assert_true(part.layer < LAYERS && part.half < halves);
                for (uint32_t k = 0; k < part.count; k++)
                    seen[part.layer][part.half][part.first + k]++;
            }
            for (uint32_t half = 0; half < halves; half++)
                for (uint32_t i = 0; i < count; i++)
                    assert_int_equal(seen[1][half][i], 1);
        }
    attnd_places_free(places);
    pool_close(&pool);
}

static void a_mapping_is_shared_and_kept_a_little(void **state)
{
    struct attnd_map *first, *second, *reads;
    struct pool pool;
    (void)state;

    (void)attnd_maps_tidy(UINT64_MAX / 2);
    assert_int_equal(attnd_maps_count(), 0);
    pool_open(&pool, BY_TOKEN);
    assert_int_equal(attnd_map_take(pool.fd, BYTES, 1, &first), 0);
    assert_int_equal(attnd_map_take(pool.fd, BYTES, 1, &second), 0);
    assert_int_equal(attnd_map_take(pool.fd, BYTES, 0, &reads), 0);
    assert_ptr_equal(first, second);
    assert_ptr_not_equal(first, reads);
    attnd_map_drop(first);
    attnd_map_drop(reads);
    const uint64_t again_ns = attnd_maps_tidy(attnd_clock_ns());
    assert_int_equal(attnd_maps_count(), 2);
    assert_true(again_ns != UINT64_MAX);
    assert_true(attnd_maps_tidy(again_ns) == UINT64_MAX); /* the other one is in use */
    assert_int_equal(attnd_maps_count(), 1);
    attnd_map_drop(second);
    (void)attnd_maps_tidy(UINT64_MAX / 2);
    assert_int_equal(attnd_maps_count(), 0);
    pool_close(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_any_layout_go_to_any_other),
        cmocka_unit_test(planes_beyond_their_memory_are_refused),
        cmocka_unit_test(a_block_that_no_page_has_is_refused),
        cmocka_unit_test(memory_that_may_shrink_or_is_a_gpus_is_refused),
        cmocka_unit_test(fragments_have_every_block_once),
        cmocka_unit_test(a_mapping_is_shared_and_kept_a_little),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
