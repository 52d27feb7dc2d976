/*
 * closer.h - let go of what is our own without waiting for the kernel: files, mappings, memory.
 */
#ifndef ATTND_IPC_CLOSER_H
#define ATTND_IPC_CLOSER_H

#include <stdint.h>

/* Embedded in what is let go of, so that there is always room for it. */
struct attnd_closing {
    struct attnd_closing *next;
    void (*close)(struct attnd_closing *closing); /* on the closer's thread; it may free it */
    uint64_t bytes;                               /* that come back then; for attnd_closer_held() */
};

/**
 * attnd_closer_take() - have @closing->close called soon, on a thread of its own
 * @closing: `close` and `bytes` are set; the closer's from now on
 *
 * In the order in which they come, and however many: nothing is dropped. Needs no memory.
 * Threads: any. Never blocks.
 */
void attnd_closer_take(struct attnd_closing *closing);

/** attnd_closer_free() - free() of @bytes, there if it is large. Nobody looks at it any more: its
 * first bytes are written. NULL is fine. */
void attnd_closer_free(void *memory, uint64_t bytes);

struct attnd_closer_held {
    uint64_t count, bytes;
};
/** attnd_closer_held() - what was taken and is not over. Threads: any. */
struct attnd_closer_held attnd_closer_held(void);

#endif
