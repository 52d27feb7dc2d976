/*
 * plan_calls.c - PlanCreate and PlanDestroy: capacities, which everything of a plan is sized by.
 */
#include "service/base/range.h"
#include "service/objects/planobj.h"
#include "service/objects/pool_check.h"
#include "service/rpc/calls.h"
#include "service/supervise/supervise.h"

#define REQUESTS_MAX (1u << 20)
#define ROWS_MAX (1u << 22)
#define PAGES_MAX (1u << 26)

static int check(const Attnd__PlanCreate *request, uint32_t heads_kv, struct attnd_fault *fault)
{
    int rc = attnd_in_range(request->requests, REQUESTS_MAX, ATTND_F_REQUESTS, fault);
    if (rc == 0)
        rc = attnd_in_range(request->rows, ROWS_MAX, ATTND_F_ROWS, fault);
    if (rc == 0)
        rc = attnd_in_range(request->pages, PAGES_MAX, ATTND_F_PAGES, fault);
    if (rc == 0)
        rc = attnd_in_range(request->levels, ATTND_LEVELS_MAX, ATTND_F_LEVELS, fault);
    if (rc == 0)
        rc = attnd_in_range(request->heads_q, ATTND_HEADS_MAX, ATTND_F_HEADS_Q, fault);
    if (rc == 0 && request->fixed_split > INT32_MAX)
        rc = attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_FIXED_SPLIT, 0, request->fixed_split,
                             INT32_MAX);
    if (rc < 0)
        return rc;
    if (request->heads_q % heads_kv)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_HEADS_Q, 0, request->heads_q,
                               request->heads_q < heads_kv
                                   ? heads_kv
                                   : request->heads_q - request->heads_q % heads_kv);
    if (request->heads_q / heads_kv > ATTND_GROUP_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_HEADS_Q, 0, request->heads_q,
                               (int64_t)ATTND_GROUP_MAX * heads_kv);
    return 0;
}

static struct attnd_batch_limits limits_of(const struct attnd_heap_pool *shape,
                                           const Attnd__PlanCreate *request)
{
    return (struct attnd_batch_limits){.pool_pages = shape->pages,
                                       .page_size = shape->page_size,
                                       .heads_kv = shape->heads_kv,
                                       .dim_qk = shape->dim_qk,
                                       .dim_vo = shape->dim_vo,
                                       .pool_dtype = shape->dtype,
                                       .requests = request->requests,
                                       .rows = request->rows,
                                       .pages = request->pages,
                                       .levels = request->levels,
                                       .heads_q = request->heads_q,
                                       .fixed_split = request->fixed_split};
}

int attnd_call_plan_create(struct attnd_call *call)
{
    const Attnd__PlanCreate *request = call->request->plan_create;
    struct attnd_client *client = call->client;
    struct attnd_attachment *attachment = attnd_client_attachment(client, request->pool);
    uint32_t handle = attnd_client_vacant((void *const *)client->plans);
    Attnd__PlanReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_PLAN);

    if (!attachment)
        return attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_POOL, 0, request->pool, 0);
    if (handle == 0 || !reply)
        return attnd_fault_set(call->fault, -ATTND_E_NO_MEMORY, ATTND_F_PLAN, 0, ATTND_HANDLES_MAX,
                               ATTND_HANDLES_MAX);
    int rc = check(request, attachment->pool->shape.heads_kv, call->fault);
    if (rc == 0) /* the worker may be another one than when the pool was made */
        rc = attnd_pool_check_variant(attnd_supervisor_worker(call->service),
                                      &attachment->pool->shape, call->fault);
    if (rc < 0)
        return rc;
    struct attnd_batch_limits limits = limits_of(&attachment->pool->shape, request);
    rc = attnd_planobj_create(client, attachment, &limits, &client->plans[handle - 1], call->fault);
    if (rc < 0)
        return rc;
    attachment->plans++;
    reply->plan = handle;
    return 0;
}

int attnd_call_plan_destroy(struct attnd_call *call)
{
    uint32_t handle = call->request->plan_destroy->plan;
    struct attnd_plan_object *plan = attnd_client_plan(call->client, handle);

    if (!plan)
        return attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_PLAN, 0, handle, 0);
    if (plan->in_flight)
        return attnd_fault_set(call->fault, -ATTND_E_BUSY, ATTND_F_PLAN, 0, handle, 0);
    if (plan->prepared)
        return attnd_fault_set(call->fault, -ATTND_E_BUSY, ATTND_F_PREPARED, 0, plan->prepared, 0);
    plan->attachment->plans--;
    call->client->plans[handle - 1] = NULL;
    attnd_planobj_destroy(call->service, plan);
    return 0;
}
