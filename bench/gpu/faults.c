/* faults.c - an engine that dies in the middle of a kernel takes the contexts of all clients of its
 * MPS server along, the worker's included. This program has none, so it can hold the session, see
 * runs fail, and repeat them until one is answered. What lay in the pool is read before and after,
 * by children that import its memory and end. */
#include "bench/gpu/faults.h"

#include "bench/gpu/engine.h"
#include "bench/gpu/peers.h"
#include "bench/support/private_service.h"
#include "ipc/wake.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- a neighbour's product ---- */

void gpu_measure_neighbour(struct bench_suite *suite)
{
    double alone_us = gpu_peer("gemm_4096_us"), beside_us, share;
    Attnd__Reply *reply = bench_suite_status(suite);
    uint32_t sms, resident;
    char notes[200];

    if (!reply)
        return;
    sms = reply->status->sms;
    resident = reply->status->sms_resident;
    attnd__reply__free_unpacked(reply, NULL);
    gpu_peers_ask("peers.py gemm");
    beside_us = gpu_peer("gemm_4096_us");
    if (!(alone_us > 0) || beside_us == alone_us || resident >= sms) {
        printf("gpu: neighbour_gemm_ratio: not measured\n");
        return;
    }
    share = (double)sms / (double)(sms - resident);
    snprintf(notes, sizeof(notes),
             "4096^3 fp16 by cuBLAS: alone %.1f us on %" PRIu32 " SMs, beside %.1f us on %" PRIu32,
             alone_us, sms, beside_us, sms - resident);
    bench_suite_figure(suite, "neighbour_gemm_ratio", beside_us / (alone_us * share), "ratio",
                       "lower", 1.05, notes);
}

/* ---- a neighbour's death ---- */

/* Memory of a pool, in a child. */
struct bytes {
    int fd;
    uint64_t size_bytes;
    bool fill;
    CUdeviceptr address;
};

static bool import(struct bench_suite *suite, struct bytes *bytes)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;

    return gpu_cuda(suite, "cuMemImportFromShareableHandle",
                    cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)bytes->fd,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) &&
           gpu_cuda(suite, "cuMemAddressReserve",
                    cuMemAddressReserve(&bytes->address, bytes->size_bytes, 0, 0, 0)) &&
           gpu_cuda(suite, "cuMemMap", cuMemMap(bytes->address, bytes->size_bytes, 0, handle, 0)) &&
           gpu_cuda(suite, "cuMemSetAccess",
                    cuMemSetAccess(bytes->address, bytes->size_bytes, &access, 1));
}

/* A sum in which every word counts by its place. */
static double sum_of(const uint32_t *words, uint64_t count)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < count; i++)
        sum = sum * 6364136223846793005u + words[i];
    return (double)(sum >> 12);
}

static bool read_bytes(struct bench_suite *suite, void *context, struct gpu_times *times)
{
    struct bytes *bytes = context;
    void *copy = malloc(bytes->size_bytes);
    bool good =
        copy && import(suite, bytes) &&
        (!bytes->fill || gpu_fill(suite, bytes->address, bytes->size_bytes, ATTND_DTYPE_FP16)) &&
        gpu_cuda(suite, "cuMemcpyDtoH", cuMemcpyDtoH(copy, bytes->address, bytes->size_bytes));

    if (good)
        times->value[0] = sum_of(copy, bytes->size_bytes / sizeof(uint32_t));
    free(copy);
    return good;
}

struct survivor {
    struct attnd_session *session;
    uint32_t memory, plan;
    uint64_t q_bytes;
    struct bytes bytes;
};

static bool open_survivor(struct bench_suite *suite, struct survivor *self)
{
    const struct bench_uniform uniform = {.dtype = ATTND_DTYPE_FP16,
                                          .layers = 1,
                                          .requests = 8,
                                          .qo_len = 1,
                                          .kv_len = 4096,
                                          .page_size = 16,
                                          .heads_q = 32,
                                          .heads_kv = 8,
                                          .dim = 128,
                                          .memory_kind = ATTND_MEMORY_DEVICE};
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "survivor"};
    struct attnd_memory_info memory = {.size = sizeof(memory)};
    struct attnd_pool_info info;
    uint32_t pool;

    self->q_bytes = bench_uniform_q_bytes(&uniform);
    if (!bench_suite_call(suite, "attnd_open", attnd_open(&args, &self->session)) ||
        !bench_suite_call(
            suite, "attnd_memory_create_device",
            attnd_memory_create_device(self->session, 2 * self->q_bytes, &self->memory)) ||
        !bench_uniform_pool(suite, self->session, &uniform, &pool, &info) ||
        !bench_uniform_plan(suite, self->session, &uniform, pool, &self->plan) ||
        !bench_suite_call(suite, "attnd_memory_info",
                          attnd_memory_info(self->session, info.memory, &memory)))
        return false;
    self->bytes = (struct bytes){.fd = attnd_memory_fd(self->session, info.memory),
                                 .size_bytes = memory.size_bytes};
    return bench_suite_call(suite, "attnd_memory_fd", self->bytes.fd);
}

/* Return: 1 answered; 0 the worker is gone or going: ask again; -1 after bench_suite_fail(). */
static int try_run(struct bench_suite *suite, const struct survivor *self)
{
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {self->memory, 0}, .o = {self->memory, self->q_bytes}};
    const struct attnd_op op = {0};
    struct attnd_completion done;
    char text[160];
    int got;

    if (!bench_suite_call(suite, "attnd_run", attnd_run(self->session, self->plan, &run, &op)))
        return -1;
    got = attnd_wait(self->session, &done, 1, 20000000000u);
    if (!bench_suite_call(suite, "attnd_wait", got))
        return -1;
    if (got && !done.fault.code)
        return 1;
    if (got && done.fault.code == -ATTND_E_WORKER_RESTARTED)
        return 0;
    bench_suite_fail(suite, "a run was answered: %s",
                     got ? attnd_fault_string(&done.fault, text, sizeof(text)) : "not for 20 s");
    return -1;
}

static uint32_t restarts(struct bench_suite *suite)
{
    Attnd__Reply *reply = bench_suite_status(suite);
    uint32_t count = reply ? reply->status->worker_restarts : 0;

    attnd__reply__free_unpacked(reply, NULL);
    return count;
}

/* Kills @engine and runs until a run is answered by another worker. Runs that the old one still
 * answers, before MPS takes its context, do not count. Return: milliseconds; 0 after a failure. */
static double time_restart(struct bench_suite *suite, const struct survivor *self, pid_t engine)
{
    const uint32_t before = restarts(suite);
    const uint64_t begin_ns = attnd_clock_ns();
    int answered = 0;

    kill(engine, SIGKILL);
    while (answered >= 0 && attnd_clock_ns() - begin_ns < 30000000000u) {
        answered = try_run(suite, self);
        double took_ms = (double)(attnd_clock_ns() - begin_ns) * 1e-6;
        if (answered > 0 && restarts(suite) > before)
            return took_ms;
    }
    bench_suite_fail(suite, "no other worker has answered for 30 s");
    return 0;
}

static bool restart_and_compare(struct bench_suite *suite, struct survivor *self, double *took_ms,
                                bool *same)
{
    struct gpu_times before = {0}, after = {0};
    pid_t engine;

    self->bytes.fill = true;
    if (!gpu_child(suite, read_bytes, &self->bytes, &before) || try_run(suite, self) != 1)
        return false;
    self->bytes.fill = false;
    engine = gpu_peers_hold();
    if (!engine) {
        printf("gpu: worker_restart_ms: not measured, nobody holds a kernel\n");
        return false;
    }
    *took_ms = time_restart(suite, self, engine);
    waitpid(engine, NULL, 0);
    bench_private_gone(engine);
    if (suite->failed || !gpu_child(suite, read_bytes, &self->bytes, &after))
        return false;
    *same = before.value[0] == after.value[0];
    if (!*same)
        bench_suite_fail(suite, "KV is not what it was before the worker died");
    return *same;
}

void gpu_measure_restart(struct bench_suite *suite)
{
    Attnd__Reply *reply = bench_suite_status(suite);
    struct survivor self = {.bytes.fd = -1};
    bool mps = reply && reply->status->mps, same;
    double took_ms;
    char notes[200];

    attnd__reply__free_unpacked(reply, NULL);
    if (!mps) {
        printf("gpu: worker_restart_ms: not measured without MPS\n");
    } else if (open_survivor(suite, &self) && restart_and_compare(suite, &self, &took_ms, &same)) {
        snprintf(notes, sizeof(notes),
                 "from kill -9 of an engine in a kernel until the next run is answered; %" PRIu64
                 " MiB of KV are the same bytes",
                 self.bytes.size_bytes >> 20);
        bench_suite_figure(suite, "worker_restart_ms", took_ms, "ms", "lower", 1000, notes);
    }
    if (self.bytes.fd >= 0)
        close(self.bytes.fd);
    attnd_close(self.session);
}
