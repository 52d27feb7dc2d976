/*
 * engine_calls.c - PlanImage and KernelFile: what an engine needs that executes its own runs.
 */
#include "service/objects/image.h"
#include "service/rpc/calls.h"
#include "service/supervise/kernels.h"

#include <unistd.h>

int attnd_call_plan_image(struct attnd_call *call)
{
    const uint32_t handle = call->request->plan_image->plan;
    struct attnd_plan_object *plan = attnd_client_plan(call->client, handle);
    Attnd__PlanImageReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_PLAN_IMAGE);

    if (!plan)
        return attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_PLAN, 0, handle, 0);
    if (!reply)
        return -ATTND_E_NO_MEMORY;
    int rc = attnd_arrival_whole(plan->attachment, &plan->awaits, call->fault);
    if (rc == 0)
        rc = attnd_image_open(call->client, plan, &call->reply_fds[0], &reply->size_bytes,
                              call->fault);
    if (rc < 0)
        return rc;
    call->reply_fds_count = 1;
    return 0;
}

/* Answered here, because a descriptor that goes with a reply stays its owner's: this call's. */
int attnd_call_kernel_file(struct attnd_call *call)
{
    const struct attnd_fault none = {0};
    Attnd__KernelFileReply reply = ATTND__KERNEL_FILE_REPLY__INIT;
    int fd;
    int rc = attnd_kernel_file_open(&call->service->options, call->service->queue->info.isa,
                                    call->request->kernel_file->kernel, &fd, &reply.size_bytes,
                                    call->fault);
    if (rc < 0)
        return rc;
    call->reply->kernel_file = &reply;
    call->reply->result_case = ATTND__REPLY__RESULT_KERNEL_FILE;
    attnd_control_answer(call->client, call->reply, fd, &none);
    close(fd);
    return ATTND_CALL_LATER;
}
