/*
 * cpu_rig.c - the rig's queue segment, port and memory. Batches are in cpu_rig_batch.c.
 *
 * The port is a mutex and a condition variable: as unlike the real one as can be, and it aborts if
 * the backend calls next, wait or retire concurrently with itself.
 */
#include "tests/support/rigs/cpu_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define HEAP_BYTES (16u << 20)
#define IN_NEXT 1
#define IN_RETIRE 2

static void must(int condition, const char *text)
{
    if (condition)
        return;
    fprintf(stderr, "cpu_rig: not true: %s\n", text);
    abort();
}
#define MUST(condition) must(!!(condition), #condition)

/* ---- port ---- */

static void enter(struct rig *rig, int call)
{
    (void)pthread_mutex_lock(&rig->lock);
    MUST(!(rig->inside & call));
    rig->inside |= call;
}

static void leave(struct rig *rig, int call)
{
    rig->inside &= ~call;
    (void)pthread_mutex_unlock(&rig->lock);
}

static int port_next(void *context, struct attnd_command *command)
{
    struct rig *rig = context;
    enter(rig, IN_NEXT);
    int taken = rig->commands_head != rig->commands_tail;
    if (taken)
        *command = rig->command[rig->commands_head++ % RIG_RUNS];
    leave(rig, IN_NEXT);
    return taken;
}

static void port_wait(void *context, uint64_t timeout_ns)
{
    struct rig *rig = context;
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(timeout_ns / 1000000000u) + 1;
    enter(rig, IN_NEXT);
    while (!rig->kicked && rig->commands_head == rig->commands_tail)
        if (pthread_cond_timedwait(&rig->changed, &rig->lock, &until) != 0)
            break;
    rig->kicked = 0;
    leave(rig, IN_NEXT);
}

static void port_kick(void *context)
{
    struct rig *rig = context;
    (void)pthread_mutex_lock(&rig->lock);
    rig->kicked = 1;
    (void)pthread_cond_broadcast(&rig->changed);
    (void)pthread_mutex_unlock(&rig->lock);
}

/* Wakes nobody here; but the caller loses the processor for as long as the test says. */
static void port_knock(void *context)
{
    struct rig *rig = context;
    (void)pthread_mutex_lock(&rig->lock);
    while (rig->hold_knocks)
        (void)pthread_cond_wait(&rig->changed, &rig->lock);
    (void)pthread_mutex_unlock(&rig->lock);
}

void rig_hold_knocks(struct rig *rig, int hold)
{
    (void)pthread_mutex_lock(&rig->lock);
    rig->hold_knocks = hold;
    (void)pthread_cond_broadcast(&rig->changed);
    (void)pthread_mutex_unlock(&rig->lock);
}

static void port_retire(void *context, const struct attnd_retire *retire)
{
    struct rig *rig = context;
    enter(rig, IN_RETIRE);
    if (retire->kind == ATTND_COMMAND_RUN) {
        rig->retired[retire->run] = *retire;
        rig->retires[retire->run]++;
    } else {
        MUST(rig->acked[retire->tag].kind == 0);
        rig->acked[retire->tag] = *retire;
    }
    (void)pthread_cond_broadcast(&rig->changed);
    leave(rig, IN_RETIRE);
}

/* ---- life ---- */

void rig_open(struct rig *rig, uint32_t threads, const char *isa)
{
    *rig = (struct rig){
        .port = {rig, port_next, port_wait, port_kick, port_knock, port_retire},
        .segment_bytes = HEAP_BYTES,
    };
    MUST(pthread_mutex_init(&rig->lock, NULL) == 0);
    MUST(pthread_cond_init(&rig->changed, NULL) == 0);
    rig->head = mmap(NULL, HEAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(rig->head != MAP_FAILED);
    rig->head->runs = RIG_RUNS + RIG_PREPARED;
    rig->head->runs_transient = RIG_RUNS;
    rig->head->ring_entries = RIG_RUNS;
    rig->head->runs_offset_bytes = ATTND_PAGE_BYTES;
    rig->runs = (struct attnd_run *)((char *)rig->head + ATTND_PAGE_BYTES);
    rig->heap_used_bytes = ATTND_PAGE_BYTES + rig->head->runs * sizeof(struct attnd_run);
    rig->head->mailboxes_offset = (uint32_t)rig->heap_used_bytes;
    rig->mailboxes = (struct attnd_mailbox_slot *)((char *)rig->head + rig->heap_used_bytes);
    rig->heap_used_bytes += ATTND_MAILBOXES_MAX * sizeof(struct attnd_mailbox_slot);

    struct attnd_backend_config config = {
        .queue = rig->head,
        .queue_bytes = rig->segment_bytes,
        .port = &rig->port,
        .threads = threads,
        .scratch_bytes = RIG_SCRATCH_BYTES,
        .isa = isa,
    };
    struct attnd_fault fault = {0};
    MUST(attnd_backend_cpu.create(&config, &rig->backend, &fault) == 0);
}

void rig_close(struct rig *rig)
{
    MUST(attnd_backend_cpu.park(rig->backend) == 0);
    attnd_backend_cpu.destroy(rig->backend);
    (void)munmap(rig->head, rig->segment_bytes);
    (void)pthread_cond_destroy(&rig->changed);
    (void)pthread_mutex_destroy(&rig->lock);
}

struct rig_memory rig_map(struct rig *rig, uint64_t size_bytes)
{
    struct rig_memory memory = {.index = rig->memories++ % ATTND_MEMORIES_MAX,
                                .size_bytes = size_bytes};
    struct attnd_fault fault = {0};
    memory.fd = memfd_create("rig", MFD_CLOEXEC);
    MUST(memory.fd >= 0 && ftruncate(memory.fd, (off_t)size_bytes) == 0);
    memory.address = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    MUST(memory.address != MAP_FAILED);
    const struct attnd_memory_source source = {
        .kind = ATTND_KIND_HOST, .fd = memory.fd, .size_bytes = size_bytes};
    MUST(attnd_backend_cpu.map(rig->backend, memory.index, &source, &fault) == 0);
    return memory;
}

void rig_unmap(struct rig *rig, struct rig_memory *memory)
{
    MUST(attnd_backend_cpu.unmap(rig->backend, &memory->index, 1) == 0);
    (void)munmap(memory->address, memory->size_bytes);
    (void)close(memory->fd);
}

void rig_send(struct rig *rig, const struct attnd_command *command)
{
    (void)pthread_mutex_lock(&rig->lock);
    MUST(command->tag < RIG_RUNS);
    rig->command[rig->commands_tail++ % RIG_RUNS] = *command;
    (void)pthread_cond_broadcast(&rig->changed);
    (void)pthread_mutex_unlock(&rig->lock);
}

void rig_submit(struct rig *rig, uint32_t run)
{
    const struct attnd_command command = {.kind = ATTND_COMMAND_RUN, .run = run};
    rig_send(rig, &command);
}

int rig_acked(struct rig *rig, uint32_t tag, int *code)
{
    (void)pthread_mutex_lock(&rig->lock);
    int told = rig->acked[tag].kind != 0;
    *code = rig->acked[tag].code;
    if (told)
        rig->acked[tag].kind = 0;
    (void)pthread_mutex_unlock(&rig->lock);
    return told;
}

int rig_await(struct rig *rig, uint32_t tag)
{
    (void)pthread_mutex_lock(&rig->lock);
    while (rig->acked[tag].kind == 0)
        (void)pthread_cond_wait(&rig->changed, &rig->lock);
    int code = rig->acked[tag].code;
    rig->acked[tag].kind = 0;
    (void)pthread_mutex_unlock(&rig->lock);
    return code;
}

struct attnd_retire rig_wait(struct rig *rig, uint32_t run, uint32_t times)
{
    (void)pthread_mutex_lock(&rig->lock);
    while (rig->retires[run] < times)
        (void)pthread_cond_wait(&rig->changed, &rig->lock);
    struct attnd_retire retire = rig->retired[run];
    (void)pthread_mutex_unlock(&rig->lock);
    return retire;
}
