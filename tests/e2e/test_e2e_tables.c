/*
 * test_e2e_tables.c - attention on page tables that were made of other forms, against its
 * definition in fp64.
 *
 * The judge reads the form that the table was made of and no CSR array: of each request it has the
 * slots of its keys, one behind the other, and its loops are plain. What is no key of any request
 * is NaN. ATTND_SEED repeats a run, ATTND_ROUNDS is the number of tables of each form (40).
 */
#include "client/attnd_tables.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include "schemas/abi.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS_MAX 6
#define KEYS_MAX 160 /* of a request */
#define SLOTS 1024   /* of a pool: pages * page_size at most */
#define ROWS_MAX 96
#define HEADS_KV 2
#define GROUP 3
#define HEADS (HEADS_KV * GROUP)
#define DIM_MAX 128
#define PLANE_BYTES ((uint64_t)SLOTS * HEADS_KV * DIM_MAX * 2)
#define ROWS_BYTES ((uint64_t)ROWS_MAX * HEADS * DIM_MAX * 2)
#define POISON 0x7fa5u /* NaN in both types of 16 bits */

static uint64_t seed, rounds;

/* One memory: K, V, q, o and lse, one behind the other. Slot s of a plane is token s % page_size of
 * page s / page_size. */
struct scene {
    struct attnd_session *session;
    uint32_t memory, pool, plan;
    uint32_t dtype, dim, page_size;
    uint16_t *k, *v, *q, *o;
    float *lse;
};

/* One batch. */
struct table {
    uint32_t requests, causal;
    int32_t qo_len[REQUESTS_MAX];
    /* For the judge. */
    int32_t keys[REQUESTS_MAX], slots[REQUESTS_MAX][KEYS_MAX];
    /* For the service. */
    int32_t kv_indptr[REQUESTS_MAX + 1], kv_indices[SLOTS], kv_last_page_len[REQUESTS_MAX];
};

/* ---- the pool ---- */

static void scene_open(struct scene *scene, const struct harness *harness)
{
    const uint64_t bytes = 2 * PLANE_BYTES + 2 * ROWS_BYTES + sizeof(float) * ROWS_MAX * HEADS;
    void *address;

    *scene = (struct scene){.session = e2e_open(harness)};
    CHECK_OK(attnd_memory_create(scene->session, bytes, &scene->memory, &address));
    scene->k = address;
    scene->v = scene->k + PLANE_BYTES / 2;
    scene->q = scene->v + PLANE_BYTES / 2;
    scene->o = scene->q + ROWS_BYTES / 2;
    scene->lse = (float *)(void *)(scene->o + ROWS_BYTES / 2);
}

static void make_pool(struct scene *scene, struct prng *prng, uint32_t page_size)
{
    scene->dtype = prng_percent(prng, 50) ? ATTND_FP16 : ATTND_BF16;
    scene->dim = prng_percent(prng, 50) ? 64 : DIM_MAX;
    scene->page_size = page_size;
    const struct attnd_plane k = {.memory = scene->memory,
                                  .stride_page = (int64_t)page_size * HEADS_KV * scene->dim,
                                  .stride_token = HEADS_KV * scene->dim,
                                  .stride_head = scene->dim};
    struct attnd_plane v = k;
    v.offset_bytes = PLANE_BYTES;
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = SLOTS / page_size,
                                         .page_size = page_size,
                                         .heads_kv = HEADS_KV,
                                         .dim_qk = scene->dim,
                                         .dim_vo = scene->dim,
                                         .dtype = scene->dtype,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .k = &k,
                                         .v = &v};
    CHECK_OK(attnd_pool_create(scene->session, &desc, &scene->pool));
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = scene->pool,
                                         .requests = REQUESTS_MAX,
                                         .rows = ROWS_MAX,
                                         .pages = SLOTS,
                                         .levels = 1,
                                         .heads_q = HEADS};
    CHECK_OK(attnd_plan_create(scene->session, &args, &scene->plan));
}

static void end_pool(const struct scene *scene)
{
    CHECK_OK(attnd_plan_destroy(scene->session, scene->plan));
    CHECK_OK(attnd_pool_release(scene->session, scene->pool));
}

static void fill_row(const struct scene *scene, struct prng *prng, uint16_t *row, double scale)
{
    for (uint32_t d = 0; d < scene->dim; d++)
        row[d] = bits16_round(scene->dtype, scale * (2 * prng_unit(prng) - 1));
}

/* Keys that a request has, and the queries; all else is poison. */
static void fill(const struct scene *scene, struct prng *prng, const struct table *table)
{
    for (uint16_t *word = scene->k; word < (uint16_t *)(void *)scene->lse; word++)
        *word = POISON;
    for (uint32_t r = 0; r < table->requests; r++)
        for (int32_t j = 0; j < table->keys[r]; j++)
            for (uint32_t head = 0; head < HEADS_KV; head++) {
                const size_t at =
                    ((size_t)table->slots[r][j] * HEADS_KV + head) * (size_t)scene->dim;
                fill_row(scene, prng, scene->k + at, 1);
                fill_row(scene, prng, scene->v + at, 1);
            }
    for (uint32_t row = 0; row < ROWS_MAX * HEADS; row++) {
        fill_row(scene, prng, scene->q + (size_t)row * scene->dim, 3);
        scene->lse[row] = NAN;
    }
}

/* ---- through the service ---- */

static void compute(const struct scene *scene, const struct table *table)
{
    const uint64_t q = 2 * PLANE_BYTES, o = q + ROWS_BYTES;
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};
    int32_t qo_indptr[REQUESTS_MAX + 1] = {0};

    for (uint32_t r = 0; r < table->requests; r++)
        qo_indptr[r + 1] = qo_indptr[r] + table->qo_len[r];
    const struct attnd_level level = {table->requests, qo_indptr, table->kv_indptr,
                                      table->kv_indices, table->kv_last_page_len};
    const struct attnd_batch batch = {
        .size = sizeof(batch), .flags = table->causal ? ATTND_CAUSAL : 0, .level = &level};
    const struct attnd_run_args args = {.size = sizeof(args),
                                        .q = {scene->memory, q},
                                        .o = {scene->memory, o},
                                        .lse = {scene->memory, o + ROWS_BYTES}};
    CHECK_OK(attnd_plan_set(scene->session, scene->plan, &batch, &quiet));
    CHECK_OK(attnd_run_sync(scene->session, scene->plan, &args));
}

/* ---- the definition ---- */

/* One row of one head, whose keys are the first @keys of @slots. @o: receives [dim]. Return: lse.
 */
static double attend(const struct scene *scene, const uint16_t *q, const int32_t *slots,
                     int32_t keys, uint32_t kv_head, double *o)
{
    const float *value_of = bits16_table(scene->dtype);
    double scores[KEYS_MAX], max = -INFINITY, sum = 0;

    for (uint32_t d = 0; d < scene->dim; d++)
        o[d] = 0;
    for (int32_t j = 0; j < keys; j++) {
        const size_t at = ((size_t)slots[j] * HEADS_KV + kv_head) * (size_t)scene->dim;
        scores[j] = 0;
        for (uint32_t d = 0; d < scene->dim; d++)
            scores[j] += (double)value_of[q[d]] * (double)value_of[scene->k[at + d]];
        scores[j] /= sqrt(scene->dim);
        max = fmax(max, scores[j]);
    }
    for (int32_t j = 0; j < keys; j++)
        sum += exp(scores[j] - max);
    for (int32_t j = 0; j < keys; j++) {
        const size_t at = ((size_t)slots[j] * HEADS_KV + kv_head) * (size_t)scene->dim;
        for (uint32_t d = 0; d < scene->dim; d++)
            o[d] += exp(scores[j] - max) / sum * (double)value_of[scene->v[at + d]];
    }
    return keys > 0 ? (max + log(sum)) / log(2) : -INFINITY;
}

static void hold(double got, double want, double tolerance, uint64_t round, uint32_t request,
                 uint32_t row, const char *what)
{
    if (isinf(want) ? got == want : fabs(got - want) <= tolerance + tolerance * fabs(want))
        return;
    check_say(__FILE__, __LINE__,
              "ATTND_SEED=%llu, round %llu: %s of request %u, row %u: got %g, want %g",
              (unsigned long long)seed, (unsigned long long)round, what, request, row, got, want);
    check_failed(__FILE__, __LINE__);
}

static void judge(const struct scene *scene, const struct table *table, uint64_t round)
{
    const double tolerance = scene->dtype == ATTND_BF16 ? 1e-2 : 1e-3;
    double o[DIM_MAX];
    uint32_t row = 0;

    for (uint32_t r = 0; r < table->requests; r++)
        for (int32_t i = 0; i < table->qo_len[r]; i++, row++)
            for (uint32_t head = 0; head < HEADS; head++) {
                const size_t at = ((size_t)row * HEADS + head) * (size_t)scene->dim;
                int32_t keys = table->keys[r];
                if (table->causal && keys > keys - table->qo_len[r] + i + 1)
                    keys = keys - table->qo_len[r] + i + 1;
                const double lse =
                    attend(scene, scene->q + at, table->slots[r], keys, head / GROUP, o);
                hold((double)scene->lse[row * HEADS + head], lse, 1e-3, round, r, row, "lse");
                for (uint32_t d = 0; d < scene->dim; d++)
                    hold(bits16_value(scene->dtype, scene->o[at + d]), o[d], tolerance, round, r,
                         row, "o");
            }
}

/* ---- forms of tables ---- */

/* Requests, queries and keys. */
static void draw_lengths(struct prng *prng, struct table *table)
{
    memset(table, 0, sizeof(*table));
    table->requests = 1 + prng_below(prng, REQUESTS_MAX);
    table->causal = prng_below(prng, 2);
    for (uint32_t r = 0; r < table->requests; r++) {
        table->qo_len[r] = prng_percent(prng, 50) ? 1 : prng_between(prng, 0, 16);
        table->keys[r] = prng_percent(prng, 10) ? 0 : prng_between(prng, 1, KEYS_MAX);
    }
}

/* Numbers 0..count-1 in any order. */
static void shuffle(struct prng *prng, int32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = prng_below(prng, i + 1);
        numbers[i] = numbers[at];
        numbers[at] = (int32_t)i;
    }
}

typedef void draw_fn(struct prng *prng, struct scene *scene, struct table *table);

static void check_form(const struct harness *harness, draw_fn *draw)
{
    static struct table table;
    struct scene scene;

    scene_open(&scene, harness);
    for (uint64_t round = 0; round < rounds; round++) {
        struct prng prng = prng_fork(seed, round);
        draw(&prng, &scene, &table);
        fill(&scene, &prng, &table);
        compute(&scene, &table);
        judge(&scene, &table, round);
        end_pool(&scene);
    }
    attnd_close(scene.session);
}

/* A row of page ids for each request, in any row of the table, and garbage behind them. One request
 * in five begins with the pages of the one before. */
static void draw_dense(struct prng *prng, struct scene *scene, struct table *table,
                       uint32_t page_size)
{
    enum { STRIDE = KEYS_MAX + 3, TABLE_ROWS = REQUESTS_MAX + 2 };
    static int32_t dense[TABLE_ROWS][STRIDE], pages[SLOTS];
    int32_t rows[TABLE_ROWS], page = 0;

    make_pool(scene, prng, page_size);
    draw_lengths(prng, table);
    shuffle(prng, pages, SLOTS / page_size);
    shuffle(prng, rows, TABLE_ROWS);
    const uint32_t in_order = prng_below(prng, 2);
    memset(dense, 0xee, sizeof(dense));
    for (uint32_t r = 0; r < table->requests; r++) {
        int32_t *to = dense[in_order ? r : (uint32_t)rows[r]];
        const int32_t count = (table->keys[r] + (int32_t)page_size - 1) / (int32_t)page_size;
        const int32_t shared = r > 0 && prng_percent(prng, 20) ? table->keys[r - 1] : 0;
        for (int32_t p = 0; p < count; p++)
            to[p] = (p + 1) * (int32_t)page_size <= shared
                        ? dense[in_order ? r - 1 : (uint32_t)rows[r - 1]][p]
                        : pages[page++];
        for (int32_t j = 0; j < table->keys[r]; j++)
            table->slots[r][j] =
                to[j / (int32_t)page_size] * (int32_t)page_size + j % (int32_t)page_size;
    }
    CHECK_OK(attnd_tables_of_dense(dense[0], STRIDE, in_order ? NULL : rows, table->keys,
                                   table->requests, page_size, table->kv_indptr, table->kv_indices,
                                   SLOTS, table->kv_last_page_len));
}

static void draw_page_table(struct prng *prng, struct scene *scene, struct table *table)
{
    static const uint32_t page_sizes[] = {5, 8, 16, 32};

    draw_dense(prng, scene, table, page_sizes[prng_below(prng, 4)]);
}

static void draw_req_to_token(struct prng *prng, struct scene *scene, struct table *table)
{
    draw_dense(prng, scene, table, 1);
}

/* Keys of all requests, one behind the other. */
static void draw_ragged(struct prng *prng, struct scene *scene, struct table *table)
{
    make_pool(scene, prng, 1);
    draw_lengths(prng, table);
    for (uint32_t r = 0; r < table->requests; r++) {
        table->kv_indptr[r + 1] = table->kv_indptr[r] + table->keys[r];
        for (int32_t j = 0; j < table->keys[r]; j++)
            table->slots[r][j] = table->kv_indptr[r] + j;
    }
    CHECK_EQUAL(attnd_tables_of_ragged(table->kv_indptr, table->requests, table->kv_indices,
                                       sizeof(table->kv_indices) / sizeof(table->kv_indices[0]),
                                       table->kv_last_page_len),
                table->kv_indptr[table->requests]);
}

/* A matrix of blocks of queries and of keys. A row of blocks is a request, and those of its blocks
 * that are there are its pages; the last column may be cut. */
static void draw_block_sparse(struct prng *prng, struct scene *scene, struct table *table)
{
    enum { BLOCK_COLUMNS_MAX = 8 };
    const int32_t block_keys = 1 << prng_between(prng, 2, 4),
                  block_rows = prng_between(prng, 1, 16);
    const int32_t keys = prng_between(prng, 1, BLOCK_COLUMNS_MAX * block_keys);
    const int32_t columns = (keys + block_keys - 1) / block_keys;
    uint8_t there[REQUESTS_MAX][BLOCK_COLUMNS_MAX] = {{0}};
    int32_t pages = 0;

    make_pool(scene, prng, (uint32_t)block_keys);
    memset(table, 0, sizeof(*table));
    table->requests = 1 + prng_below(prng, REQUESTS_MAX);
    for (uint32_t r = 0; r < table->requests; r++) {
        table->qo_len[r] = block_rows;
        for (int32_t c = 0; c < columns; c++) {
            there[r][c] = (uint8_t)prng_percent(prng, 40);
            if (!there[r][c])
                continue;
            table->kv_indices[pages++] = c;
            table->kv_last_page_len[r] =
                c + 1 < columns ? block_keys : keys - (columns - 1) * block_keys;
        }
        table->kv_indptr[r + 1] = pages;
        for (int32_t j = 0; j < keys; j++)
            if (there[r][j / block_keys])
                table->slots[r][table->keys[r]++] = j;
    }
}

/* shows: dense page tables, `req_to_token`, ragged keys, block-sparse patterns | yes | yes; slow to
 * prefill where a page is a token | made CSR arrays by the caller | test_e2e_tables,
 * test_client_tables */
static void a_dense_page_table_is_attended_to(void **state)
{
    check_form(*state, draw_page_table);
}

static void req_to_token_is_attended_to(void **state)
{
    check_form(*state, draw_req_to_token);
}

static void ragged_keys_are_attended_to(void **state)
{
    check_form(*state, draw_ragged);
}

static void a_block_sparse_pattern_is_attended_to(void **state)
{
    check_form(*state, draw_block_sparse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_dense_page_table_is_attended_to),
        E2E_TEST(req_to_token_is_attended_to),
        E2E_TEST(ragged_keys_are_attended_to),
        E2E_TEST(a_block_sparse_pattern_is_attended_to),
    };

    harness_init();
    seed = test_seed();
    rounds = test_number("ATTND_ROUNDS", 40);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
