/* one_page.c - see one_page.h. */
#include "tests/support/harness/one_page.h"

#include "tests/support/harness/check.h"

#include <stdlib.h>

#define DIM 64u
#define PAGE_BYTES 8192u
#define WAIT_NS 20000000000u

int planes_pool(struct attnd_session *session, const struct attnd_plane *k,
                const struct attnd_plane *v, uint32_t pages, uint32_t page_size, uint32_t dim,
                uint32_t *pool)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = pages,
                                         .page_size = page_size,
                                         .heads_kv = 1,
                                         .dim_qk = dim,
                                         .dim_vo = dim,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .k = k,
                                         .v = v};

    return attnd_pool_create(session, &desc, pool);
}

uint32_t plain_planes_pool(struct attnd_session *session, uint32_t memory, uint64_t offset_bytes,
                           uint32_t page_size, uint32_t dim)
{
    const struct attnd_plane k = {.memory = memory,
                                  .offset_bytes = offset_bytes,
                                  .stride_page = (int64_t)page_size * dim,
                                  .stride_token = dim,
                                  .stride_head = dim};
    struct attnd_plane v = k;
    uint32_t pool;

    v.offset_bytes += 2ull * page_size * dim;
    CHECK_OK(planes_pool(session, &k, &v, 1, page_size, dim, &pool));
    return pool;
}

int one_page_make(struct attnd_session *session, uint32_t page_size, uint32_t requests,
                  uint32_t pages, uint64_t rows_bytes, struct one_page *made)
{
    struct attnd_plane plane = {.offset_bytes = rows_bytes};
    struct attnd_plan_args plan = {.size = sizeof(plan),
                                   .requests = requests,
                                   .rows = requests,
                                   .pages = pages,
                                   .levels = 1,
                                   .heads_q = 1};
    int rc = attnd_memory_create(session, rows_bytes + PAGE_BYTES, &made->memory, NULL);

    plane.memory = made->memory;
    if (rc == 0)
        rc = planes_pool(session, &plane, &plane, 1, page_size, DIM, &made->pool);
    plan.pool = made->pool;
    return rc < 0 ? rc : attnd_plan_create(session, &plan, &made->plan);
}

static void set_and_await(struct attnd_session *session, uint32_t plan,
                          const struct attnd_batch *batch)
{
    const struct attnd_op op = {.user_data = 1};
    struct attnd_completion done;

    CHECK_OK(attnd_plan_set(session, plan, batch, &op));
    CHECK_EQUAL(attnd_wait(session, &done, 1, WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
}

uint32_t one_page_plan(struct attnd_session *session, uint32_t pool,
                       const struct one_page_batch *batch)
{
    const uint32_t rows = batch->requests * batch->rows, pages = batch->requests * batch->pages;
    int32_t *qo = calloc(batch->requests + 1, sizeof(*qo));
    int32_t *kv = calloc(batch->requests + 1, sizeof(*kv));
    int32_t *last = calloc(batch->requests, sizeof(*last));
    int32_t *page = calloc(pages, sizeof(*page)); /* 0 */
    const struct attnd_level level = {batch->requests, qo, kv, page, last};
    const struct attnd_batch all = {.size = sizeof(all), .level = &level, .q = batch->q};
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = pool,
                                         .requests = batch->requests,
                                         .rows = rows,
                                         .pages = pages,
                                         .levels = 1,
                                         .heads_q = batch->heads_q};
    uint32_t plan;

    CHECK(qo && kv && last && page);
    for (uint32_t r = 0; r < batch->requests; r++) {
        qo[r + 1] = (int32_t)((r + 1) * batch->rows);
        kv[r + 1] = (int32_t)((r + 1) * batch->pages);
        last[r] = (int32_t)batch->page_size;
    }
    CHECK_OK(attnd_plan_create(session, &args, &plan));
    set_and_await(session, plan, &all);
    free(qo);
    free(kv);
    free(last);
    free(page);
    return plan;
}
