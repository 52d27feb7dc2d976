/*
 * residency.cu - how much of the GPU the kernels take, and for how long.
 *
 * elastic    On all SMs, but only while something is queued. Gangs, a dispatcher and its workers,
 *            are enqueued ahead of time behind a wait for a word of host memory (helper.cu); a
 *            doorbell sets it (RESIDENCY.md has the times). Between gangs nothing of ours is on any
 *            SM, so kernels of engines lose nothing. `auto` chooses it.
 * shared     Resident on some of the SMs: answers come while others keep the GPU full, and a kernel
 *            of engines that needs all SMs at once takes twice the time. Without MPS contexts take
 *            turns on the whole GPU, and a kernel that never ends makes everybody wait for the end
 *            of its time slice, over and over.
 * exclusive  Resident on all SMs: for a GPU that does nothing else, and for measuring.
 *
 * MPS is the device's own answer (cudaDevAttrMpsEnabled): contexts created on it will be shared.
 * The dispatcher's CTA is small but takes an SM, because workers fill theirs.
 *
 * `elastic` with some SMs reserved is both: the dispatcher and as many workers less one stay, and
 * the others come and go beside them (dispatch/extra.cuh). Under MPS alone: without it SMs are not
 * shared, and what stays takes time slices.
 */
#include "persistent/cuda/host/residency.cuh"

#include <string.h>

int residency_choose(attnd_backend *backend, int sms)
{
    const attnd_backend_config *config = &backend->config;
    const char *mode = config->residency ? config->residency : "auto";
    int taken = sms, stays = 0;

    if (strcmp(mode, "auto") == 0 || strcmp(mode, "elastic") == 0) {
        backend->residency = ATTND_RESIDENCY_ELASTIC;
        stays = int(config->reserve) - 1; /* the dispatcher's */
    } else if (strcmp(mode, "shared") == 0) {
        backend->residency = ATTND_RESIDENCY_SHARED;
        taken = config->sms ? int(config->sms) : sms / 2;
    } else if (strcmp(mode, "exclusive") == 0) {
        backend->residency = ATTND_RESIDENCY_EXCLUSIVE;
    } else {
        return 0;
    }
    if (taken > sms)
        taken = sms;
    if (taken < 2)
        taken = 2;
    if (config->threads && int(config->threads) < taken - 1)
        taken = int(config->threads) + 1;
    if (backend->mps && stays > 0 && stays < taken - 1)
        backend->settings.reserved = uint32_t(stays);
    return taken - 1;
}
