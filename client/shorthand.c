/*
 * shorthand.c - what most engines write first: a pool with nothing special, a run that is waited
 * for.
 *
 * Both are made of the calls beside them and know nothing else of the session.
 */
#include "client/internal.h"

int attnd_pool_create_leased(struct attnd_session *session, uint32_t layers, uint32_t pages,
                             uint32_t page_size, uint32_t heads_kv, uint32_t head_dim,
                             uint32_t dtype, uint32_t *pool)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = layers,
                                         .pages = pages,
                                         .page_size = page_size,
                                         .heads_kv = heads_kv,
                                         .dim_qk = head_dim,
                                         .dim_vo = head_dim,
                                         .dtype = dtype,
                                         .page_owner = ATTND_PAGES_OF_SERVICE};
    return attnd_pool_create(session, &desc, pool);
}

int attnd_run_sync(struct attnd_session *session, uint32_t plan, const struct attnd_run_args *args)
{
    struct attnd_completion done;
    struct attnd_fault first = {0};
    /* No other operation of a thread that waits here can have the address of this one's variable.
     */
    const struct attnd_op op = {.user_data = (uint64_t)(uintptr_t)&done};
    int rc = attnd_run(session, plan, args, &op);

    if (rc < 0)
        return rc;
    do {
        rc = attnd_wait(session, &done, 1, ATTND_FOREVER);
        if (rc < 0)
            return rc;
        if (done.fault.code < 0 && first.code == 0)
            first = done.fault;
    } while (done.user_data != op.user_data || done.operation != ATTND_RUN);
    return first.code < 0 ? attnd_fault_keep(&first) : 0;
}
