/*
 * backend.h - what the worker process asks of its executor of tiles: threads or a megakernel.
 *
 * The backend reads the queue segment (commands name runs, runs name plans, plans name tiles) and
 * maps memory by table index. It does not know the daemon: the worker lends it a port to fetch
 * commands and to retire runs, so that persistent/ needs no ipc/.
 */
#ifndef ATTND_PERSISTENT_BACKEND_H
#define ATTND_PERSISTENT_BACKEND_H

#include "schemas/abi.h"
#include "schemas/errors.h"

/* Partial results of a worker on processors, where nobody says how much. */
#define ATTND_SCRATCH_BYTES (UINT64_C(256) << 20)

/* The way to the daemon, lent by service/worker/port.c. The calls of one port are not concurrent
 * with themselves: the backend serialises next() and wait() among its threads, and retire()
 * likewise. */
struct attnd_port {
    void *context;
    /* Takes one command. Return: 1, or 0 if there is none. Never blocks. */
    int (*next)(void *context, struct attnd_command *command);
    /* Sleeps until there is a command, the park word changed, kick() was called or timeout_ns
     * passed. Spins first where that pays. */
    void (*wait)(void *context, uint64_t timeout_ns);
    /* Wakes a wait() from any thread; with none under way, the next one returns at once. */
    void (*kick)(void *context);
    /* Wakes the daemon if it sleeps. It may have the processor before this returns: not under a
     * lock that others wait for. Any thread. */
    void (*knock)(void *context);
    /* Reports a finished run; the daemon hears of it by a knock(). Blocks only while its ring is
     * full. One thread at a time. */
    void (*retire)(void *context, const struct attnd_retire *retire);
};

/* Faults made on purpose, to test what follows from them. */
enum attnd_injection {
    ATTND_INJECT_NONE,
    ATTND_INJECT_STALL, /* runs begin and never end */
    ATTND_INJECT_STUCK, /* a tile waits in vain and says so */
    ATTND_INJECT_FAULT  /* an illegal access on the device, some time after the first run */
};

struct attnd_backend_config {
    struct attnd_queue_head *queue; /* the mapped queue segment; info and state are the backend's */
    uint64_t queue_bytes;
    const struct attnd_port *port; /* borrowed for life */
    uint32_t threads;              /* tile workers; 0: one a processor it may run on */
    uint64_t scratch_bytes;        /* budget for partials; 0: what suits the backend */
    const char *isa;               /* NULL: the best there is; else "avx512", "avx2", "portable" */
    uint32_t device;               /* GPU only: its number, as CUDA counts */
    const char *residency;         /* "auto", "elastic", "shared", "exclusive": GPU only */
    uint32_t sms;                  /* to be resident on in "shared"; 0: half of them */
    uint32_t reserve;              /* SMs to stay on in "elastic"; 0: none */
    enum attnd_injection injection;
    const char *modules; /* GPU only: a directory of kernels that were not built in; NULL: none */
    void (*say)(const char *text); /* to the worker's log; NULL: nowhere. Any thread */
};

/* A memory object, as the backend gets it. The descriptor and the handle stay the caller's. */
struct attnd_memory_source {
    uint32_t kind; /* enum attnd_memory_kind */
    int fd;        /* -1 where the kind has none */
    uint64_t size_bytes;
    const uint8_t *handle; /* [ATTND_IPC_HANDLE_BYTES], NULL where the kind has none */
};

struct attnd_backend;

/* More is to be done: ask again, with the same arguments. Others may be asked for in between. */
#define ATTND_BACKEND_MORE 1

/* A backend. All functions but check() are called from the worker's main thread; map() of large
 * memory, and unmap() of HOST and IPC, from another one, which begins after start() and so beside
 * any of the others but destroy(), though never for an index that another call is about. */
struct attnd_backend_ops {
    const char *name;

    /* Fills queue->info; takes no command yet. Return: 0, -ATTND_E_UNSUPPORTED (no such ISA or
     * device), -ATTND_E_NO_MEMORY, -ATTND_E_SYSTEM. */
    int (*create)(const struct attnd_backend_config *config, struct attnd_backend **out,
                  struct attnd_fault *fault);

    /* Begins to take commands; sets state RUNNING. */
    int (*start)(struct attnd_backend *backend);

    /* Puts a memory object at @index of the memory table, any time. What @source says may be a lie
     * of the engine it came from: that is a fault, and nothing else is disturbed. Return: 0;
     * ATTND_BACKEND_MORE a part of it is there, which unmap() takes out as well;
     * -ATTND_E_UNSUPPORTED a kind that info.memory_kinds lacks; -ATTND_E_DEVICE the driver refuses
     * it: it is not what it is said to be, or gone; -ATTND_E_RANGE it is smaller;
     * -ATTND_E_NO_MEMORY, -ATTND_E_SYSTEM. */
    int (*map)(struct attnd_backend *backend, uint32_t index,
               const struct attnd_memory_source *source, struct attnd_fault *fault);

    /* Takes them out, all at once: some kinds can only be let go with the tiles at rest. The daemon
     * proves first that no run in flight names any of them. Return: 0; ATTND_BACKEND_MORE not all
     * of them are gone; -ATTND_E_UNKNOWN if one was not there, -ATTND_E_SYSTEM or -ATTND_E_DEVICE
     * if one could not be given back; the others are taken out. */
    int (*unmap)(struct attnd_backend *backend, const uint32_t *indices, uint32_t count);

    /* Copies whole pages, of which @offset_bytes in the queue segment says which (struct
     * attnd_copy). Runs go on; that none writes what is read, or reads what is written, is the
     * daemon's to prove. Blocks until the bytes are there for every run that begins afterwards.
     * Threads: one for each direction, beside any of the others but destroy(). Return: 0;
     * -ATTND_E_UNKNOWN memory that is not mapped; -ATTND_E_RANGE outside the segment or a memory;
     * -ATTND_E_DEVICE. */
    int (*copy)(struct attnd_backend *backend, uint64_t offset_bytes);

    /* The same for whole pages of another service's pool (struct attnd_bring), by a thread of its
     * own. -ATTND_E_UNSUPPORTED: memory of a kind that this backend cannot bring from. */
    int (*bring)(struct attnd_backend *backend, uint64_t offset_bytes);

    /* Finishes what was begun, takes nothing more, sets state PARKED; start() resumes. Runs not
     * begun stay queued. Return: 0. Blocks for at most the longest tile. */
    int (*park)(struct attnd_backend *backend);

    /* Is everything well? Asked every check_period_ms by a thread of its own, concurrently with all
     * the others. @report: why not, several lines. Of a backend that is not well nothing more is
     * asked; what can still be ended in order has been when this returns. Return: 0;
     * -ATTND_E_DEVICE (the device failed), -ATTND_E_TIMEOUT (a tile does not end). NULL: always
     * well. */
    int (*check)(struct attnd_backend *backend, char *report, size_t report_bytes);
    uint32_t check_period_ms;

    /* After park(). */
    void (*destroy)(struct attnd_backend *backend);
};

extern const struct attnd_backend_ops attnd_backend_cpu;
extern const struct attnd_backend_ops attnd_backend_cuda; /* cuda_none.c where there is no nvcc */

#endif
