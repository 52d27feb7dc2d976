/* one_page.c - see one_page.h. */
#include "tests/support/harness/one_page.h"

#define DIM 64u
#define PAGE_BYTES 8192u

int one_page_make(struct attnd_session *session, uint32_t page_size, uint32_t requests,
                  uint32_t pages, uint64_t rows_bytes, struct one_page *made)
{
    struct attnd_plane plane = {.offset_bytes = rows_bytes};
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = 1,
                                         .page_size = page_size,
                                         .heads_kv = 1,
                                         .dim_qk = DIM,
                                         .dim_vo = DIM,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .k = &plane,
                                         .v = &plane};
    struct attnd_plan_args plan = {.size = sizeof(plan),
                                   .requests = requests,
                                   .rows = requests,
                                   .pages = pages,
                                   .levels = 1,
                                   .heads_q = 1};
    int rc = attnd_memory_create(session, rows_bytes + PAGE_BYTES, &made->memory, NULL);

    plane.memory = made->memory;
    if (rc == 0)
        rc = attnd_pool_create(session, &desc, &made->pool);
    plan.pool = made->pool;
    return rc < 0 ? rc : attnd_plan_create(session, &plan, &made->plan);
}
