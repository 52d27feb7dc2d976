/* Pages of one pool into another as rows of bytes: held against every element's own place. */
#include "persistent/bring.h"
#include "schemas/errors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 3u
#define PAGES 5u
#define SIZE 4u
#define HEADS 2u
#define DIM 16u
#define BYTES 65536u
#define COUNT 2u

struct one_pool {
    struct attnd_heap_pool pool;
    struct attnd_heap_plane planes[2 * LAYERS];
};

/* A queue segment with both pools, and a copy of pages 3 and 1 into 0 and 4. */
struct segment {
    struct one_pool to, from;
    struct attnd_bring what;
    struct attnd_bring_page pages[COUNT];
};

static uint8_t to_bytes[BYTES], from_bytes[BYTES];
static uint32_t rows_count;

enum layout { BY_TOKEN, BY_HEAD, WITH_GAPS, LAYERS_APART };

static struct one_pool pool_of(enum layout layout)
{
    struct one_pool made = {.pool = {LAYERS, PAGES, SIZE, HEADS, DIM, DIM, ATTND_FP16, 0}};
    const int64_t gap = layout == WITH_GAPS ? 8 : 0;
    const int64_t page = SIZE * HEADS * (DIM + gap);

    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        made.planes[i] = (struct attnd_heap_plane){
            .memory = layout == LAYERS_APART ? 1 + i % 2 : 1, /* the test maps both to one place */
            .offset_bytes = (uint64_t)i * (uint64_t)page * PAGES * 2,
            .stride_page = page,
            .stride_token = layout == BY_HEAD ? DIM : HEADS * (DIM + gap),
            .stride_head = layout == BY_HEAD ? SIZE * DIM : DIM + gap};
    return made;
}

static int copy(void *context, const struct attnd_bring_rows *rows)
{
    uint64_t from_reach, to_reach;
    (void)context;

    rows_count++;
    assert_int_equal(attnd_bring_extent(rows, rows->from_pitch_bytes, &from_reach), 0);
    assert_int_equal(attnd_bring_extent(rows, rows->to_pitch_bytes, &to_reach), 0);
    assert_true(rows->from_offset_bytes + from_reach <= BYTES);
    assert_true(rows->to_offset_bytes + to_reach <= BYTES);
    for (uint32_t row = 0; row < rows->count; row++)
        memcpy(to_bytes + rows->to_offset_bytes + row * rows->to_pitch_bytes,
               from_bytes + rows->from_offset_bytes + row * rows->from_pitch_bytes,
               rows->row_bytes);
    return 0;
}

static struct segment segment_of(enum layout to, enum layout from)
{
    return (struct segment){.to = pool_of(to),
                            .from = pool_of(from),
                            .what = {.pool_offset_bytes = offsetof(struct segment, to),
                                     .from_offset_bytes = offsetof(struct segment, from),
                                     .layer_begin = 1,
                                     .layer_end = LAYERS,
                                     .count = COUNT},
                            .pages = {{.page = 0, .from = 3}, {.page = 4, .from = 1}}};
}

static int walk(const struct segment *segment)
{
    rows_count = 0;
    return attnd_bring_walk(segment, sizeof(*segment), offsetof(struct segment, what), copy, NULL);
}

static uint8_t *element(uint8_t *bytes, const struct attnd_heap_plane *plane, int64_t page,
                        int64_t token, int64_t head, int64_t d)
{
    return bytes + plane->offset_bytes +
           2 * (page * plane->stride_page + token * plane->stride_token +
                head * plane->stride_head + d);
}

/* Return: elements of the pages that are wrong, and bytes elsewhere that were written. */
static uint32_t wrong_in(const struct segment *segment)
{
    static uint8_t expected[BYTES];
    uint32_t wrong = 0;

    memset(expected, 0xee, sizeof(expected));
    for (uint32_t i = 0; i < COUNT; i++)
        for (uint32_t plane = 0; plane < 2 * LAYERS; plane++)
            for (uint32_t e = 0; plane % LAYERS > 0 && e < SIZE * HEADS * DIM; e++) {
                const int64_t token = e / (HEADS * DIM), head = e / DIM % HEADS, d = e % DIM;
                memcpy(element(expected, &segment->to.planes[plane], segment->pages[i].page, token,
                               head, d),
                       element(from_bytes, &segment->from.planes[plane], segment->pages[i].from,
                               token, head, d),
                       2);
            }
    for (uint32_t i = 0; i < BYTES; i++)
        wrong += expected[i] != to_bytes[i];
    return wrong;
}

static void every_element_comes_to_its_place_and_nothing_else_is_written(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < BYTES; i++)
        from_bytes[i] = (uint8_t)(i * 31 + i / 256 * 7);
    for (int to = BY_TOKEN; to <= LAYERS_APART; to++)
        for (int from = BY_TOKEN; from <= LAYERS_APART; from++) {
            const struct segment segment = segment_of((enum layout)to, (enum layout)from);
            memset(to_bytes, 0xee, sizeof(to_bytes));
            assert_int_equal(walk(&segment), 0);
            assert_int_equal(wrong_in(&segment), 0);
        }
}

static void layers_of_a_page_are_one_copy_where_they_can_be(void **state)
{
    struct segment segment = segment_of(BY_HEAD, BY_HEAD);
    (void)state;

    assert_int_equal(walk(&segment), 0);
    assert_int_equal(rows_count, 2 * COUNT); /* K, V of each page */
    segment = segment_of(BY_TOKEN, LAYERS_APART);
    assert_int_equal(walk(&segment), 0);
    assert_int_equal(rows_count, 2 * COUNT * (LAYERS - 1));
}

/* Values that are the first elements of the keys have come with them. */
static void values_that_lie_in_keys_are_brought_once(void **state)
{
    struct segment segment = segment_of(BY_TOKEN, BY_TOKEN);
    (void)state;

    for (uint32_t i = 0; i < LAYERS; i++) {
        segment.to.planes[LAYERS + i] = segment.to.planes[i];
        segment.from.planes[LAYERS + i] = segment.from.planes[i];
    }
    assert_int_equal(walk(&segment), 0);
    assert_int_equal(rows_count, COUNT);
}

static void what_makes_no_sense_is_refused_before_it_is_copied(void **state)
{
    (void)state;
    for (int lie = 0; lie < 6; lie++) {
        struct segment segment = segment_of(BY_TOKEN, BY_HEAD);
        switch (lie) {
        case 0:
            segment.pages[0].from = PAGES;
            break;
        case 1:
            segment.from.pool.dim_qk = DIM * 2;
            break;
        case 2:
            segment.what.layer_end = LAYERS + 1;
            break;
        case 3:
            segment.from.planes[1].stride_page = -64;
            break;
        case 4:
            segment.from.planes[1].stride_page = INT64_MAX / 2;
            break;
        default:
            segment.what.from_offset_bytes = sizeof(segment);
            break;
        }
        assert_int_equal(walk(&segment), -ATTND_E_RANGE);
        assert_int_equal(rows_count, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_comes_to_its_place_and_nothing_else_is_written),
        cmocka_unit_test(layers_of_a_page_are_one_copy_where_they_can_be),
        cmocka_unit_test(values_that_lie_in_keys_are_brought_once),
        cmocka_unit_test(what_makes_no_sense_is_refused_before_it_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
