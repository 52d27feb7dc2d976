/* liar.c - see liar.h. */
#include "tests/support/harness/liar.h"

#include "tests/support/harness/check.h"

void liar_pool(struct attnd_session *session, uint32_t *planes, uint32_t *pool)
{
    struct attnd_plane k = {.stride_page = 2048, .stride_token = 128, .stride_head = 64}, v;
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = LIAR_PAGES,
                                         .page_size = 16,
                                         .heads_kv = 2,
                                         .dim_qk = 64,
                                         .dim_vo = 64,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .k = &k,
                                         .v = &v};

    CHECK_OK(attnd_memory_create(session, 2 * LIAR_PLANE_BYTES, planes, NULL));
    k.memory = *planes;
    v = k;
    v.offset_bytes = LIAR_PLANE_BYTES;
    CHECK_OK(attnd_pool_create(session, &desc, pool));
}

int liar_same_fault(const struct attnd_fault *a, const struct attnd_fault *b)
{
    return a->code == b->code && a->field == b->field && a->index == b->index &&
           a->value == b->value && a->limit == b->limit;
}
