/* Copies of whole pages as rows of bytes: where they lie follows from the size of an element. */
#include "persistent/copy.h"
#include "schemas/errors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 2u
#define PAGE_SIZE 4
#define HEADS 2
#define DIM 64
#define PAGE (PAGE_SIZE * HEADS * DIM) /* elements */
#define PAGES 8u
#define HOST_AT 4096u

/* A queue segment with one pool and a copy of page 3 of it. */
struct segment {
    struct attnd_heap_pool pool;
    struct attnd_heap_plane planes[2 * LAYERS];
    struct attnd_copy copy;
    struct attnd_copy_page page;
};

struct seen {
    struct attnd_copy_rows rows[2 * LAYERS];
    uint32_t count;
};

static int take(void *context, const struct attnd_copy_rows *rows)
{
    struct seen *seen = context;
    assert_true(seen->count < 2 * LAYERS);
    seen->rows[seen->count++] = *rows;
    return 0;
}

/* As the service lays out a pool: [layer][K, V][page]. */
static struct segment segment_of(uint32_t dtype, uint32_t element_bytes)
{
    struct segment segment = {.pool = {LAYERS, PAGES, PAGE_SIZE, HEADS, DIM, DIM, dtype, 0}};
    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        segment.planes[i] =
            (struct attnd_heap_plane){.offset_bytes = (uint64_t)(2 * (i % LAYERS) + i / LAYERS) *
                                                      PAGES * PAGE * element_bytes,
                                      .stride_page = PAGE,
                                      .stride_token = HEADS * DIM,
                                      .stride_head = DIM};
    segment.copy = (struct attnd_copy){.pool_offset_bytes = offsetof(struct segment, pool),
                                       .to_host = 1,
                                       .layer_end = LAYERS,
                                       .count = 1};
    segment.page = (struct attnd_copy_page){.page = 3, .memory = 7, .offset_bytes = HOST_AT};
    return segment;
}

static void rows_are_as_long_as_elements_make_them(void **state)
{
    static const uint32_t types[][2] = {
        {ATTND_FP16, 2}, {ATTND_BF16, 2}, {ATTND_FP8_E4M3, 1}, {ATTND_FP8_E5M2, 1}};
    (void)state;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        const uint32_t bytes = types[t][1];
        const struct segment segment = segment_of(types[t][0], bytes);
        struct seen seen = {0};
        assert_int_equal(
            attnd_copy_walk(&segment, sizeof(segment), offsetof(struct segment, copy), take, &seen),
            0);
        assert_int_equal(seen.count, 2); /* layers are equally far apart: K at once, then V */
        for (uint32_t v = 0; v < 2; v++) {
            const struct attnd_copy_rows *rows = &seen.rows[v];
            assert_int_equal(rows->count, LAYERS);
            assert_int_equal(rows->row_bytes, PAGE * bytes);
            assert_int_equal(rows->pitch_bytes, 2 * PAGES * PAGE * bytes);
            assert_int_equal(rows->pool_offset_bytes, (v * PAGES + 3) * PAGE * bytes);
            assert_int_equal(rows->host_offset_bytes, HOST_AT + v * LAYERS * PAGE * bytes);
        }
        assert_int_equal(attnd_copy_page_bytes(&segment.pool), 2 * LAYERS * PAGE * bytes);
    }
}

static void a_page_outside_of_the_pool_is_refused(void **state)
{
    struct segment segment = segment_of(ATTND_FP8_E4M3, 1);
    struct seen seen = {0};
    (void)state;
    segment.page.page = PAGES;
    assert_int_equal(
        attnd_copy_walk(&segment, sizeof(segment), offsetof(struct segment, copy), take, &seen),
        -ATTND_E_RANGE);
    assert_int_equal(seen.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_as_long_as_elements_make_them),
        cmocka_unit_test(a_page_outside_of_the_pool_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
