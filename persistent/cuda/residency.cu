/*
 * residency.cu - how much of the GPU the kernels take, and for how long.
 *
 * shared     resident on some of the SMs, never leaves by itself. Half of them saturate the memory,
 *            and the rest is there for kernels of engines. That needs MPS: without it contexts take
 *            turns on the whole GPU, and a kernel that never ends makes everybody wait for the end
 *            of its time slice, over and over. With bursts the other SMs are taken too, for two
 *            milliseconds and a tile, when much is queued and nobody else is on them.
 * exclusive  resident on all SMs: for a GPU that does nothing else, and for measuring.
 * isolated   on all SMs, but only while something is queued; the helper launches the kernels again
 *            when there is. An idle service costs others nothing.
 *
 * MPS is the device's own answer (cudaDevAttrMpsEnabled): contexts created on it will be shared.
 * The dispatcher's CTA is small but takes an SM, because workers fill theirs.
 */
#include "persistent/cuda/backend.cuh"

#include <string.h>

int residency_choose(attnd_backend *backend, int sms, int mps)
{
    const attnd_backend_config *config = &backend->config;
    const char *mode = config->residency ? config->residency : "auto";
    int taken = sms;

    if (strcmp(mode, "auto") == 0)
        mode = mps ? "shared" : "isolated";
    if (strcmp(mode, "shared") == 0) {
        backend->residency = ATTND_RESIDENCY_SHARED;
        taken = config->sms ? int(config->sms) : sms / 2;
    } else if (strcmp(mode, "exclusive") == 0) {
        backend->residency = ATTND_RESIDENCY_EXCLUSIVE;
    } else if (strcmp(mode, "isolated") == 0) {
        backend->residency = ATTND_RESIDENCY_ISOLATED;
    } else {
        return 0;
    }
    if (taken > sms)
        taken = sms;
    if (taken < 2)
        taken = 2;
    if (config->burst && backend->residency == ATTND_RESIDENCY_SHARED)
        backend->burst = uint32_t(sms - taken);
    if (config->threads && int(config->threads) < taken - 1)
        taken = int(config->threads) + 1;
    return taken - 1;
}
