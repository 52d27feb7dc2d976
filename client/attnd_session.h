/*
 * attnd_session.h - a session: opened, asked about, slept on, closed. Part of attnd.h.
 */
#ifndef ATTND_SESSION_H
#define ATTND_SESSION_H

#include "schemas/errors.h"
#include "schemas/executor.h"
#include "schemas/version.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct attnd_session;

/* A struct of arguments with its size set, for one call, in C:
 * attnd_plan_create(session, &ATTND_ARGS(plan_args, .pool = pool, .requests = 8, ...), &plan) */
#define ATTND_ARGS(name, ...)                                                                      \
    ((struct attnd_##name){.size = sizeof(struct attnd_##name), __VA_ARGS__})

struct attnd_open_args {
    uint32_t size;
    uint32_t ring_entries;   /* of submissions, and of completions: power of two, 8..4096; 0: 256 */
    uint64_t arena_bytes;    /* for batches on their way, 64 KiB to 1 GiB; 0: 8 MiB */
    const char *socket_path; /* NULL: as attnd_open() says */
    const char *name;        /* shown by attnctl status, 31 bytes of it; may be NULL */
    const uint32_t *daemon_uid; /* the user that the daemon must run as; NULL: this one, or root */
    uint64_t tables_bytes; /* of attnd_tables_memory(); with the arena at most 1 GiB; 0: none */
    uint32_t execute;      /* enum attnd_executor: a wish for launched runs (attnd_launch.h) */
    uint32_t reserved0;    /* 0 */
};

struct attnd_info {
    uint32_t size;
    uint32_t session;
    char backend[16]; /* "cpu", "cuda" */
    char isa[32];
    char daemon_version[32];
    uint32_t ring_entries;
    uint64_t arena_bytes;
    char residency[16];   /* "shared", "exclusive", "elastic"; "": no GPU */
    uint8_t gpu_uuid[16]; /* of the service's GPU, as CUDA tells it; zeros: none */
    uint32_t mps;         /* 1: the service shares it by MPS */
    uint32_t executor;    /* enum attnd_executor, of launched runs; 0: none has been prepared yet */
};

/**
 * attnd_open() - connect to the service
 * @args: may be NULL for the defaults; borrowed for the call
 *
 * The default socket is $ATTND_SOCKET, if that is set and not empty. Else it is
 * $XDG_RUNTIME_DIR/attnd/attnd.sock of a user other than root, if that variable is set and the file
 * is there or /run/attnd/attnd.sock is not. Else it is the system's, /run/attnd/attnd.sock. Blocks
 * for the handshake, at most 5 s. Return: 0 and *session, which attnd_close() frees;
 * -ATTND_E_DISCONNECTED (field socket, value errno) nobody answers there; -ATTND_E_PERMISSION
 * (field socket) this user is not admitted, or (field daemon_uid) another user (value) listens
 * there than is expected (limit); -ATTND_E_VERSION; -ATTND_E_RANGE (ring_entries, arena, a socket's
 * path of over 107 bytes, or sessions: the service, or this process, has as many as it may);
 * -ATTND_E_INVALID (executor, reserved); -ATTND_E_NO_MEMORY; -ATTND_E_SYSTEM.
 */
int attnd_open(const struct attnd_open_args *args, struct attnd_session **session);

/**
 * attnd_close() - end the session and free everything of it, NULL included
 * Operations in flight are drained by the service without being reported; mappings made by
 * attnd_memory_create() and attnd_pool_create() become invalid here.
 */
void attnd_close(struct attnd_session *session);

/** attnd_info() - what the session is connected to. Return: 0 or -ATTND_E_FORKED. */
int attnd_info(struct attnd_session *session, struct attnd_info *info);

/**
 * attnd_fd() - a descriptor that is readable (POLLIN) when attnd_wait() has something to return:
 * completions, or that the service is gone
 * For the engine's own event loop: call attnd_arm() before polling it, attnd_wait() after. It may
 * be readable for no reason; then attnd_wait() returns 0. Borrowed; owned by the session. Return:
 * the descriptor; -ATTND_E_FORKED.
 */
int attnd_fd(const struct attnd_session *session);

/**
 * attnd_arm() - ask for a wake-up on attnd_fd() at the next completion
 * Threads: the waiting one. Return: 1 completions are there already, do not sleep; 0 armed;
 * -ATTND_E_DISCONNECTED.
 */
int attnd_arm(struct attnd_session *session);

/** attnd_last_fault() - details of this thread's last failed call; code 0 if there was none. */
void attnd_last_fault(struct attnd_fault *fault);

/** attnd_last_fault_string() - as a sentence, with the path of a service that was not reached. */
char *attnd_last_fault_string(char *text, size_t text_bytes);

/** attnd_version() - of this library, "major.minor.patch". */
const char *attnd_version(void);

/* A struct of this header and its size, or a field of one ("attnd_batch.sm_scale") and its place.
 */
struct attnd_abi_entry {
    const char *name;
    uint32_t offset, bytes;
};

/** attnd_abi() - how this library lays out its structs, for callers that no compiler checks.
 * Return: static storage; the last entry's name is NULL. */
const struct attnd_abi_entry *attnd_abi(void);

#ifdef __cplusplus
}
#endif

#endif
