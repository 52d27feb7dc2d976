/*
 * executor.c - who executes the runs that a session launches: its engine, by a kernel in its own
 * stream, or the worker.
 *
 * The engine needs a GPU and the kernels of the service's build. Where both are there it is the
 * faster way, for one session alone and for several (persistent/cuda/journal/engine-launch.md), so
 * it is what `auto` means there. But where workers stay on SMs, those are what somebody asked for,
 * and the engine's kernel would wait for the SMs that they have. It is decided once a session: a
 * graph that could change its mind would pay for that in each layer.
 */
#include "schemas/executor.h"
#include "service/prepared/internal.h"
#include "service/supervise/kernels.h"

#include <string.h>

/* Why it cannot be the engine; NULL: it can. */
static const char *obstacle(const struct attnd_service *service)
{
    if (service->queue->info.mailbox_kind != ATTND_KIND_DEVICE)
        return "the worker is no GPU's";
    if (!attnd_kernel_files_are_there(&service->options, service->queue->info.isa))
        return "no engine.fatbin beside the worker";
    return NULL;
}

/* Do workers stay on SMs, whether there are runs or not? Without MPS no SM is reserved. */
static int workers_stay(const struct attnd_service *service)
{
    const struct attnd_worker_info *info = &service->queue->info;

    return info->residency == ATTND_RESIDENCY_SHARED ||
           info->residency == ATTND_RESIDENCY_EXCLUSIVE || (service->options.reserve && info->mps);
}

/* Why `auto` is not the engine; NULL: it is. */
static const char *against_auto(const struct attnd_service *service)
{
    return workers_stay(service) ? "workers stay on SMs" : obstacle(service);
}

static uint32_t operators_word(const struct attnd_options *options)
{
    if (!options->execute || strcmp(options->execute, "auto") == 0)
        return ATTND_EXECUTE_AUTO;
    return strcmp(options->execute, "engine") == 0 ? ATTND_EXECUTE_ENGINE : ATTND_EXECUTE_SERVICE;
}

int attnd_executor_choose(const struct attnd_service *service, uint32_t wish,
                          struct attnd_mail *mail, struct attnd_fault *fault)
{
    if (wish > ATTND_EXECUTE_SERVICE)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_EXECUTOR, 0, wish,
                               ATTND_EXECUTE_SERVICE);
    const uint32_t word = wish == ATTND_EXECUTE_AUTO ? operators_word(&service->options) : wish;
    const char *against = word == ATTND_EXECUTE_SERVICE  ? NULL
                          : word == ATTND_EXECUTE_ENGINE ? obstacle(service)
                                                         : against_auto(service);

    if (word == ATTND_EXECUTE_ENGINE && against)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_EXECUTOR, ATTND_F_BACKEND,
                               ATTND_EXECUTE_ENGINE, 0);
    mail->by_engine = word != ATTND_EXECUTE_SERVICE && !against;
    if (wish != ATTND_EXECUTE_AUTO)
        mail->why = "the session asked for it";
    else if (word != ATTND_EXECUTE_AUTO)
        mail->why = "--execute";
    else
        mail->why = against ? against : "auto";
    return 0;
}
