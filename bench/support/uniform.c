/* uniform.c - pages are dealt out so that no two neighbours of a request are neighbours in memory,
 * and layers exist so that a run finds none of its keys in a cache. */
#include "bench/support/uniform.h"

#include "schemas/abi.h"

#include <stdlib.h>

#define ELEMENT_BYTES 2u /* of q and o */
#define PAGE_STEP 1597u  /* prime: with any count of pages that is no multiple, a permutation */

uint64_t bench_uniform_q_bytes(const struct bench_uniform *uniform)
{
    return (uint64_t)uniform->requests * uniform->qo_len * uniform->heads_q * uniform->dim *
           ELEMENT_BYTES;
}

static uint32_t kv_dtype_of(const struct bench_uniform *uniform)
{
    return uniform->kv_dtype ? uniform->kv_dtype : uniform->dtype;
}

uint64_t bench_uniform_kv_bytes(const struct bench_uniform *uniform)
{
    const uint32_t planes = uniform->dim_vo ? 1 : 2;

    return (uint64_t)uniform->requests * uniform->kv_len * uniform->heads_kv * uniform->dim *
           planes * attnd_dtype_bytes(kv_dtype_of(uniform));
}

double bench_uniform_operations(const struct bench_uniform *uniform)
{
    const double rows = uniform->qo_len, keys = uniform->kv_len;
    const double pairs = rows * (keys - rows) + rows * (rows + 1) / 2;

    const double dims = uniform->dim + (uniform->dim_vo ? uniform->dim_vo : uniform->dim);

    return 2.0 * dims * uniform->heads_q * pairs * uniform->requests;
}

void bench_uniform_fill(void *memory, uint64_t size_bytes, uint32_t dtype)
{
    const int narrow = attnd_dtype_is_fp8(dtype) != 0;
    const uint16_t base = narrow ? 0x3030 : dtype == ATTND_DTYPE_FP16 ? 0x3400 : 0x3e80;
    const uint32_t drawn = narrow ? 0x8787u : 0x807fu;
    uint16_t *bits = memory;
    uint32_t state = 1;

    for (uint64_t i = 0; i < size_bytes / ELEMENT_BYTES; i++) {
        state = state * 1664525u + 1013904223u;
        bits[i] = (uint16_t)(base + (state >> 16 & drawn));
    }
}

/* Of rows whose beginning is V: one plane a layer. */
static struct attnd_plane *make_planes(const struct bench_uniform *uniform)
{
    struct attnd_plane *planes = calloc(uniform->layers, sizeof(*planes));
    const int64_t token = (int64_t)uniform->heads_kv * uniform->dim;

    for (uint32_t layer = 0; planes && layer < uniform->layers; layer++)
        planes[layer] =
            (struct attnd_plane){.memory = uniform->planes,
                                 .offset_bytes = layer * bench_uniform_kv_bytes(uniform),
                                 .stride_page = uniform->page_size * token,
                                 .stride_token = token,
                                 .stride_head = uniform->dim};
    return planes;
}

bool bench_uniform_pool(struct bench_suite *suite, struct attnd_session *session,
                        const struct bench_uniform *uniform, uint32_t *pool,
                        struct attnd_pool_info *info)
{
    struct attnd_plane *planes = uniform->dim_vo ? make_planes(uniform) : NULL;
    struct attnd_pool_desc desc = {.size = sizeof(desc),
                                   .layers = uniform->layers,
                                   .pages =
                                       uniform->requests * uniform->kv_len / uniform->page_size,
                                   .page_size = uniform->page_size,
                                   .heads_kv = uniform->heads_kv,
                                   .dim_qk = uniform->dim,
                                   .dim_vo = uniform->dim_vo ? uniform->dim_vo : uniform->dim,
                                   .dtype = kv_dtype_of(uniform),
                                   .page_owner = ATTND_PAGES_OF_ENGINE,
                                   .k = planes,
                                   .v = planes,
                                   .memory_kind = planes ? 0 : uniform->memory_kind};
    const bool good =
        bench_suite_call(suite, "attnd_pool_create", attnd_pool_create(session, &desc, pool));

    free(planes);
    *info = (struct attnd_pool_info){.size = sizeof(*info)};
    return good &&
           bench_suite_call(suite, "attnd_pool_info", attnd_pool_info(session, *pool, info));
}

/* One level: @arrays has room for two CSR arrays, the last lengths and the pages, in this order. */
static struct attnd_level deal(const struct bench_uniform *uniform, int32_t *arrays)
{
    const uint32_t requests = uniform->requests, each = uniform->kv_len / uniform->page_size;
    int32_t *qo_indptr = arrays, *kv_indptr = qo_indptr + requests + 1;
    int32_t *last_page_len = kv_indptr + requests + 1, *pages = last_page_len + requests;

    for (uint32_t i = 0; i <= requests; i++) {
        qo_indptr[i] = (int32_t)(i * uniform->qo_len);
        kv_indptr[i] = (int32_t)(i * each);
    }
    for (uint32_t i = 0; i < requests; i++)
        last_page_len[i] = (int32_t)uniform->page_size;
    for (uint32_t i = 0; i < requests * each; i++)
        pages[i] = (int32_t)((uint64_t)i * PAGE_STEP % (requests * each));
    return (struct attnd_level){requests, qo_indptr, kv_indptr, pages, last_page_len};
}

bool bench_uniform_plan(struct bench_suite *suite, struct attnd_session *session,
                        const struct bench_uniform *uniform, uint32_t pool, uint32_t *plan)
{
    const uint32_t pages = uniform->requests * (uniform->kv_len / uniform->page_size);
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = pool,
                                         .requests = uniform->requests,
                                         .rows = uniform->requests * uniform->qo_len,
                                         .pages = pages,
                                         .levels = 1,
                                         .heads_q = uniform->heads_q,
                                         .fixed_split = uniform->variant.fixed_split};
    int32_t *arrays = calloc(3 * (size_t)uniform->requests + 2 + pages, sizeof(*arrays));
    struct attnd_op op = {0};
    bool good = false;

    if (arrays) {
        const struct attnd_level level = deal(uniform, arrays);
        const struct attnd_batch batch = {.size = sizeof(batch),
                                          .levels = 1,
                                          .dtype = uniform->dtype,
                                          .flags = ATTND_CAUSAL,
                                          .level = &level,
                                          .variant =
                                              uniform->variant.size ? &uniform->variant : NULL};
        good =
            bench_suite_call(suite, "attnd_plan_create", attnd_plan_create(session, &args, plan)) &&
            bench_suite_call(suite, "attnd_plan_set", attnd_plan_set(session, *plan, &batch, &op));
    } else {
        bench_suite_fail(suite, "out of memory");
    }
    free(arrays);
    return good && bench_wait_all(suite, session, 1, NULL);
}
