/*
 * health.cu - is all well on the device, and if not, what was everybody doing?
 *
 * Several things can be wrong, and none of them ends the process by itself: a CUDA error (under MPS
 * also one that another client caused), a helper that could not launch, a thread that waited in
 * vain at a barrier and said so, and something that does not get on: a tile that does not end, an
 * item that nobody does, a worker that does not leave. A snapshot of the kernels' state is copied
 * while they are resident; the copy is asked for in one look and judged in the next, so a look
 * never waits for the device.
 *
 * Before the worker is ended, kernels that still can are let finish and leave: under MPS a client
 * that dies with a kernel on the device takes all others along.
 */
#include "persistent/cuda/host/health.cuh"
#include "persistent/cuda/host/helper.cuh"

extern "C" {
#include "schemas/atomics.h"
}

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

using attnd::Resident;
using attnd::ring_positions;
using attnd::StuckRecord;
using attnd::variants_count;

/* Nothing moves for so long although something is begun. An item may take longer, but loops say how
 * far they are: no portion of one does. */
constexpr uint64_t tile_deadline_ns = 5000000000ull;
/* A snapshot every so many looks. */
constexpr uint32_t snapshot_looks = 5;
/* A dispatcher has left, and its workers neither follow nor get on; later than one that is stuck
 * says so. */
constexpr uint64_t follow_deadline_ns = 4000000000ull;
/* How long kernels may take to leave when the worker is to end. */
constexpr uint64_t leave_ns = 500000000ull;
/* A snapshot that does not come: see keep_asking(). */
constexpr uint64_t call_after_ns = 200000000ull, other_stream_ns = 400000000ull;

struct Snapshot {
    Resident resident;
    StuckRecord stuck[variants_count];
};

__global__ void access_illegally(uint32_t *nowhere)
{
    *nowhere = 1;
}

static cudaError_t open_stream(Health *health)
{
    int least = 0, most = 0;
    const cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &most);
    return error ? error
                 : cudaStreamCreateWithPriority(&health->stream, cudaStreamNonBlocking, most);
}

cudaError_t health_init(attnd_backend *backend)
{
    Health *health = &backend->health;
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, access_illegally); /* loaded now */
    if (error || (error = open_stream(health)) ||
        (error = cudaHostAlloc((void **)&health->snapshot, sizeof(Snapshot), 0)))
        return error;
    health->moved_ns = health->left_ns = attnd_clock_ns();
    memset(health->snapshot, 0, sizeof(Snapshot));
    return cudaSuccess;
}

static cudaError_t ask(attnd_backend *backend)
{
    Health *health = &backend->health;
    Snapshot *to = health->snapshot;
    cudaError_t error;
    if ((error = cudaMemcpyAsync(&to->resident, backend->resident, sizeof(Resident),
                                 cudaMemcpyDeviceToHost, health->stream)))
        return error;
    const uint32_t there = attnd_observe32(&backend->variants_there); /* A1: they are filled in */
    for (uint32_t v = 0; v < variants_count; v++)
        if (there >> v & 1 &&
            (error = cudaMemcpyAsync(&to->stuck[v], attnd::variant_get(v).stuck,
                                     sizeof(StuckRecord), cudaMemcpyDeviceToHost, health->stream)))
            return error;
    health->asked = 1;
    health->asked_ns = attnd_clock_ns();
    return cudaSuccess;
}

/* ---- the report ---- */

struct Report {
    char *text;
    size_t left;
};

static void say(Report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(Report *report, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(report->text, report->left, format, arguments);
    va_end(arguments);
    size_t taken = length < 0 ? 0 : size_t(length);
    if (taken >= report->left)
        taken = report->left ? report->left - 1 : 0;
    report->text += taken;
    report->left -= taken;
}

static void say_runs(Report *report, const Snapshot *from, const attnd_queue_head *queue)
{
    const Resident *resident = &from->resident;
    const char *base = reinterpret_cast<const char *>(queue);
    const attnd_run *runs = reinterpret_cast<const attnd_run *>(base + queue->runs_offset_bytes);
    uint32_t end = resident->published, begin = resident->retired;
    for (uint32_t i = begin; i != end && i - begin < ring_positions; i++) {
        const uint32_t at = i % ring_positions, slot = resident->submitted_run[at];
        const attnd::RunEntry *entry = &resident->ring[at];
        const attnd::Live *live = &resident->live[at];
        if (slot >= queue->runs || entry->sequence != i + 1)
            continue; /* the copy caught it in the middle */
        say(report,
            "run %" PRIu32 ": slot %" PRIu32 ", session %" PRIu32 ", plan at %" PRIu64
            ", layer %" PRIu32 ", variant %u: %" PRIu32 " items, %" PRIu32 " taken, %" PRIu32
            " done%s%s\n",
            i, slot, runs[slot].session, runs[slot].plan_offset_bytes, runs[slot].layer,
            entry->variant, entry->items, live->next_item, uint32_t(live->done),
            live->cancelled ? ", cancelled" : "",
            slot >= queue->runs_transient ? ", by a doorbell" : "");
    }
}

/* Workers that do the same are one line. */
static void say_workers(Report *report, const Snapshot *from, uint32_t workers)
{
    static const char *const names[] = {"not there", "idle", "in an item", "left"};
    for (uint32_t first = 0, w = 0; first < workers; first = w) {
        uint32_t doing = from->resident.doing[first], at = from->resident.cursor[first];
        for (w = first + 1;
             w < workers && from->resident.doing[w] == doing && from->resident.cursor[w] == at;)
            w++;
        say(report, "workers %" PRIu32 "..%" PRIu32 ": %s, at run %" PRIu32 "\n", first, w - 1,
            doing < 4 ? names[doing] : "?", at);
    }
}

static void say_all(Report *report, const attnd_backend *backend)
{
    const Snapshot *from = backend->health.snapshot;
    const attnd_queue_head *queue = backend->config.queue;
    const Resident *resident = &from->resident;
    say(report,
        "dispatcher: %" PRIu32 " runs published, %" PRIu32 " retired; commands: %" PRIu32
        " taken of %" PRIu32 "; retires: %" PRIu32 "; variants %#" PRIx32 ", gang %" PRIu32
        ", closed %" PRIu32 ", error %" PRIu32 "\n",
        resident->published, resident->retired, resident->commands_head,
        attnd_observe32(&queue->command_tail), resident->retires_tail, resident->resident,
        resident->running, resident->leave, resident->error);
    for (uint32_t v = 0; v < variants_count; v++)
        if (from->stuck[v].seen)
            say(report,
                "variant %" PRIu32 ": block %" PRIu32 ", warp %" PRIu32
                " waited in vain: barrier %#" PRIx32 ", parity %" PRIu32 "\n",
                v, from->stuck[v].block, from->stuck[v].thread / 32, from->stuck[v].barrier,
                from->stuck[v].parity);
    say_runs(report, from, queue);
    say_workers(report, from, backend->settings.workers);
}

/* ---- judging ---- */

/* The last copy that came is good enough where none comes any more. */
static int device_failed(attnd_backend *backend, cudaError_t error, Report *report)
{
    say(report, "the device failed: CUDA error %d, %s: %s\n", error, cudaGetErrorName(error),
        cudaGetErrorString(error));
    say(report, "as of the last look before:\n");
    say_all(report, backend);
    return -ATTND_E_DEVICE;
}

static cudaError_t device_error(const attnd_backend *backend)
{
    uint32_t failed = attnd_observe32(&backend->failed);
    if (failed)
        return cudaError_t(failed);
    for (uint32_t i = 0; i < backend->streams_count; i++) {
        cudaError_t error = cudaStreamQuery(backend->streams[i]);
        if (error && error != cudaErrorNotReady)
            return error;
    }
    return cudaSuccess;
}

/* Those that can leave do, for as long as there is time. */
static void end_in_order(attnd_backend *backend)
{
    const uint64_t until_ns = attnd_clock_ns() + leave_ns;
    const timespec step = {0, 1000000};
    attnd_publish32(&backend->config.queue->park, 1);
    gangs_dismiss(backend, 1);
    for (uint32_t i = 0; i <= backend->streams_count; i++) {
        cudaStream_t stream =
            i < backend->streams_count ? backend->streams[i] : backend->extras_stream;
        while (stream && cudaStreamQuery(stream) == cudaErrorNotReady &&
               attnd_clock_ns() < until_ns) {
            gang_wake(backend); /* what is armed is not to come later */
            (void)nanosleep(&step, NULL);
        }
    }
}

/* Changes when anything gets on. Tickets do not say so: extra workers that come take one of
 * every run that they walk past, whether or not anybody is done. */
static uint64_t progress(const Snapshot *from)
{
    const Resident *resident = &from->resident;
    uint64_t sum = uint64_t(resident->published) << 32 ^ uint64_t(resident->retired) << 16 ^
                   resident->commands_head;
    for (const attnd::Live &live : resident->live)
        sum = sum * 31 + live.done + live.portions;
    return sum;
}

/* Something was begun that is not done: a worker is in an item, or all have passed a run that is
 * not retired, and perhaps left behind it. Kernels that have not got their SMs yet have begun
 * nothing; and a dispatcher closes when there is no item left to take. Where extra workers are does
 * not matter: they come and walk all the time, and those that stay pass every run. */
static bool begun(const Snapshot *from)
{
    const Resident *resident = &from->resident;
    bool passed = resident->published != resident->retired;
    bool any = resident->leave == resident->running;
    for (uint32_t w = 0; w < resident->workers; w++) {
        if (!resident->present[w])
            continue;
        if (resident->doing[w] == attnd::state_item)
            return true;
        if (attnd::is_extra(*resident, w))
            continue;
        passed &= resident->cursor[w] == resident->published;
        any = true;
    }
    return passed && any;
}

/* A dispatcher has closed, and workers that had begun beside it are still there. */
static bool some_stay(const Snapshot *from)
{
    const Resident *resident = &from->resident;
    bool any = false;
    for (uint32_t w = 0; w < resident->workers; w++)
        any |= resident->present[w] != 0;
    return any && resident->leave == resident->running;
}

static int judge(attnd_backend *backend, Report *report)
{
    Health *health = &backend->health;
    const Snapshot *from = health->snapshot;
    const uint64_t now_ns = attnd_clock_ns(), seen = progress(from);
    const bool moves = seen != health->progress;
    health->progress = seen;
    if (moves || !begun(from))
        health->moved_ns = now_ns;
    bool waited = false;
    for (const StuckRecord &record : from->stuck)
        waited |= record.seen != 0;
    if (moves || !some_stay(from) || from->resident.running != health->running)
        health->left_ns = now_ns;
    health->running = from->resident.running;
    int code = 0;
    if (from->resident.error) {
        say(report, "the dispatcher gave up\n");
        code = -ATTND_E_DEVICE;
    } else if (waited) {
        say(report, "a thread is stuck\n");
        code = -ATTND_E_TIMEOUT;
    } else if (now_ns - health->left_ns > follow_deadline_ns) {
        say(report, "a worker does not leave\n");
        code = -ATTND_E_TIMEOUT;
    } else if (now_ns - health->moved_ns > tile_deadline_ns) {
        say(report, "a tile does not end: nothing got on for %.1f s\n",
            double(now_ns - health->moved_ns) / 1e9);
        code = -ATTND_E_TIMEOUT;
    }
    if (code)
        say_all(report, backend);
    return code;
}

/* Tests: once something has run. */
static void inject(attnd_backend *backend)
{
    if (backend->config.injection != ATTND_INJECT_FAULT || backend->health.injected ||
        !attnd_observe32(&backend->config.queue->retire_tail))
        return;
    backend->health.injected = 1;
    access_illegally<<<1, 1, 0, backend->side_stream>>>(NULL);
}

/* The snapshot does not come. The device may be busy with others, or the stream got the queue in
 * which gangs wait. Those are called; and where one is there and does not end, another stream gets
 * another queue, some time. */
static cudaError_t keep_asking(attnd_backend *backend)
{
    Health *health = &backend->health;
    const uint64_t waited_ns = attnd_clock_ns() - health->asked_ns;
    cudaError_t error;
    if (waited_ns > call_after_ns)
        gang_wake(backend);
    if (waited_ns < other_stream_ns)
        return cudaSuccess;
    (void)cudaStreamDestroy(health->stream); /* when what is in it is done */
    if ((error = open_stream(health)))
        return error;
    return ask(backend);
}

int health_check(attnd_backend *backend, char *text, size_t text_bytes)
{
    Health *health = &backend->health;
    Report report = {text, text_bytes};
    (void)cudaSetDevice(backend->driver.device); /* of this thread */
    cudaError_t error = device_error(backend);
    int code = 0;
    if (!error && health->asked) {
        error = cudaStreamQuery(health->stream);
        if (error == cudaErrorNotReady)
            return (error = keep_asking(backend)) ? device_failed(backend, error, &report) : 0;
        health->asked = 0;
        code = error ? 0 : judge(backend, &report);
    }
    if (!error && !code) {
        inject(backend);
        if (!attnd_observe32(&backend->launched))
            health->moved_ns = health->left_ns = attnd_clock_ns();
        else if (health->looks++ % snapshot_looks == 0)
            error = ask(backend);
    }
    if (error)
        return device_failed(backend, error, &report);
    if (code)
        end_in_order(backend);
    return code;
}
