/*
 * engine.h - what a test's engine process owns: a session, memory, and a pool with a plan.
 *
 * One registered memory is cut in two: planes of pools at the front, rows (q, o, lse, k, v) behind.
 * Beside each pool stands a shadow in private memory, byte for byte what the pool must contain;
 * what no batch uses is filled with 0xff in both, which is NaN in both formats. References are
 * computed from the shadow and never from the pool.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_ENGINE_H
#define ATTND_TESTS_SUPPORT_HARNESS_ENGINE_H

#include "client/attnd.h"
#include "tests/support/random/random_batch.h"

#define ENGINE_LAYERS_MAX 4
#define ENGINE_ROWS_BYTES (24u << 20)

/* What a trial of this engine writes before it begins. */
enum engine_fill {
    ENGINE_FILLS_PAGES,  /* the pages of the pool and the shadow */
    ENGINE_FILLS_SHADOW, /* the shadow: another engine fills the pages with the same values */
    ENGINE_FILLS_NOTHING /* both are what an earlier trial left */
};

/* How an engine reaches device memory. Trials then work on private memory of the same layout; what
 * they wrote is pushed before they submit, and what the service wrote is pulled before they look.
 */
struct engine_device {
    /* The engine's memory; NULL: the service makes it. */
    uint32_t (*make)(struct attnd_session *session, uint64_t bytes);
    uint64_t (*map)(struct attnd_session *session, uint32_t memory); /* an address of the device */
    void (*unmap)(uint64_t address);
    void (*push)(uint64_t to, const void *from, uint64_t bytes);
    void (*pull)(void *to, uint64_t from, uint64_t bytes);
};

/* Private memory, and where the same bytes lie on the device. */
struct engine_mirror {
    uint8_t *bytes;
    uint64_t device_address, size_bytes;
};

struct trial;

/* How runs of an engine's trials are executed, if not by attnd_run(). What is before a run in its
 * trial is over when it is called. */
struct engine_runner {
    int (*run)(struct trial *trial, uint32_t step, uint32_t layer, uint32_t lane);
    /* All runs of the trial are over. Return: 0, or the first one's code. */
    int (*settle)(struct trial *trial);
    void (*end)(struct trial *trial); /* nothing names the trial's plan any more */
};

struct engine {
    const struct engine_device *device; /* NULL: all is host memory, and mapped */
    const struct engine_runner *runner; /* NULL: attnd_run() */
    struct engine_mirror memory_mirror; /* of `memory` */
    struct engine_mirror pool_mirror;   /* of a pool's own memory; bytes NULL: none */
    struct attnd_session *session;
    void *mapping;   /* of memory of its own, else NULL */
    uint32_t memory; /* of the planes (if they are the engine's) and of all rows */
    uint8_t *rows;   /* mapping of the part for rows */
    uint64_t rows_offset_bytes;
    uint8_t *planes; /* mapping of the part for planes */
    int poisoned;    /* planes have been filled with 0xff */

    struct random_shape shape; /* of the pool below; heads_kv 0: none yet */
    uint32_t pool, plan;
    uint32_t pages;
    int32_t *page_ids;                 /* [pages] that this engine may use */
    uint32_t window_begin, window_end; /* the part of page_ids that a trial begun now takes from */
    uint8_t *address;                  /* of the pool's memory here */
    uint8_t *shadow;                   /* the same offsets, private */
    struct attnd_plane k[ENGINE_LAYERS_MAX], v[ENGINE_LAYERS_MAX];
    int attached; /* the pool is another engine's */
    enum engine_fill fill;
};

/** engine_open() - a session at @socket_path, with memory; fails the test otherwise. */
void engine_open(struct engine *engine, const char *socket_path, const char *name);
/** engine_open_with() - the same with ring and arena sizes. @own: the memory is a memfd of this
 * process, registered, instead of one made by the service. */
void engine_open_with(struct engine *engine, const struct attnd_open_args *args, int own);
/** engine_open_device() - the same in device memory, planes, rows and pools. Trials of such an
 * engine are one at a time. */
void engine_open_device(struct engine *engine, const char *socket_path, const char *name,
                        const struct engine_device *device);
void engine_close(struct engine *engine);

/** engine_push()/pull() - all bytes to the device and back; nothing to do in host memory. */
void engine_push(const struct engine *engine);
void engine_pull(const struct engine *engine);

/** engine_pool() - have a pool of @shape and a roomy plan for it; keeps the one it has if equal. */
void engine_pool(struct engine *engine, const struct random_shape *shape);

/** engine_attach() - the pool of another engine, of the same @shape, by token; fills the shadow. */
void engine_attach(struct engine *engine, const struct random_shape *shape,
                   const struct attnd_token *token);

/** engine_plan() - a plan of the pool with these capacities; the caller destroys it.
 * @fixed_split: the shortest of its batches; 0: none has one */
uint32_t engine_plan(struct engine *engine, uint32_t requests, uint32_t rows, uint32_t pages,
                     uint32_t levels, uint32_t fixed_split);

#endif
