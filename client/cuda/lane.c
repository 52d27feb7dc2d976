/*
 * lane.c - what went wrong in a lane, and what only engines have that execute their own runs: plans
 * whose lengths only the GPU knows, and runs that also rotate q and k and store k and v.
 */
#include "client/cuda/stream.h"

int attnd_cuda_lane_error(struct attnd_session *session, uint32_t lane)
{
    uint32_t code = 0;
    int rc;
    const struct attnd_stream_launcher *launcher = attnd_stream_launcher_open(session, &rc);

    if (launcher == NULL)
        return rc;
    rc = attnd_stream_check_lane(lane);
    if (rc < 0)
        return rc;
    CUdeviceptr errors = launcher->engine
                             ? launcher->engine->block + launcher->engine->facts.errors_at
                             : launcher->mailbox + offsetof(struct attnd_mailbox, error);
    CUdeviceptr word = errors + lane * sizeof(uint32_t);
    CUresult result = cuMemcpyDtoHAsync(&code, word, sizeof(code), launcher->stream);
    if (result == CUDA_SUCCESS)
        result = cuStreamSynchronize(launcher->stream);
    if (result == CUDA_SUCCESS && code != 0)
        result = cuMemsetD32Async(word, 0, 1, launcher->stream);
    if (result == CUDA_SUCCESS && code != 0)
        result = cuStreamSynchronize(launcher->stream);
    if (result != CUDA_SUCCESS)
        return attnd_stream_fault(result);
    if (code != 0 && launcher->engine)
        return attnd_engine_lane_failed(launcher->engine, lane, code);
    return attnd_lane_failed(lane, code);
}

/* Of what only engines have that execute their own runs. NULL with *@code. */
static struct attnd_engine *engine_for(struct attnd_session *session, uint32_t lane, int *code)
{
    const struct attnd_stream_launcher *launcher = attnd_stream_launcher_open(session, code);

    if (launcher == NULL)
        return NULL;
    *code = attnd_stream_check_lane(lane);
    if (*code < 0)
        return NULL;
    if (launcher->engine == NULL)
        *code = attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_EXECUTOR, ATTND_F_BACKEND,
                                  ATTND_EXECUTE_SERVICE, ATTND_EXECUTE_ENGINE);
    return launcher->engine;
}

int attnd_cuda_plan_on_stream(struct attnd_session *session, uint32_t plan, uint32_t lane,
                              const struct attnd_cuda_plan_args *args, CUstream stream)
{
    struct attnd_cuda_plan_args own;
    int rc = attnd_args_take(&own, sizeof(own), args);

    if (rc < 0)
        return rc;
    struct attnd_engine *engine = engine_for(session, lane, &rc);
    return engine ? attnd_engine_cut(engine, plan, lane, &own, stream) : rc;
}

int attnd_cuda_run_fused_on_stream(struct attnd_session *session, uint32_t lane, uint32_t prepared,
                                   const struct attnd_cuda_fused_args *args, CUstream stream)
{
    struct attnd_cuda_fused_args own;
    int rc = attnd_args_take(&own, sizeof(own), args);

    if (rc < 0)
        return rc;
    struct attnd_engine *engine = engine_for(session, lane, &rc);
    return engine ? attnd_engine_run(engine, lane, prepared, &own, stream) : rc;
}
