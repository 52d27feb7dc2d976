/*
 * fake_daemon.h - the other end of a session, by hand, for tests of libattnd.
 *
 * A thread answers one client's control calls; the test itself plays the data plane: it takes
 * submissions, posts completions, and dies when it likes. Nothing of service/ is in here, so that
 * the protocol is written down twice. Two fields let a test misbehave: `spoil` changes a reply that
 * is about to leave, `answer` replaces it.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_FAKE_DAEMON_H
#define ATTND_TESTS_SUPPORT_HARNESS_FAKE_DAEMON_H

#include "ipc/ring.h"
#include "ipc/shm.h"
#include "ipc/wake.h"
#include "schemas/attnd.pb-c.h"

#include <pthread.h>

struct attnd_session;
struct fake_daemon;

enum fake_verdict {
    FAKE_REPLY,  /* send the reply */
    FAKE_SILENT, /* send nothing */
    FAKE_DIE     /* end the connection instead */
};

struct fake_reply {
    Attnd__Reply message;
    int fds[4];
    int fd_count;
};

typedef enum fake_verdict fake_spoil_fn(struct fake_daemon *fake, const Attnd__Request *request,
                                        struct fake_reply *reply);

struct fake_daemon {
    /* Before fake_listen(); 0 and NULL are the defaults. */
    uint32_t ring_entries;
    uint64_t arena_bytes;
    int eventfd_doorbell;
    fake_spoil_fn *spoil; /* on the daemon's thread */
    void *context;

    char path[64];
    int listener, client;
    pthread_t thread;

    /* After the client has opened. */
    struct attnd_shm submission, completion;
    int notify, doorbell;
    struct attnd_submit_head *submit;
    struct attnd_complete_head *complete;
    struct attnd_consumer sq;
    struct attnd_producer cq;
    uint8_t *arena;

    /* What the client said and the daemon's memory of it. */
    uint32_t mapped;  /* Mapped was received */
    uint32_t calls;   /* received */
    int memory_fd;    /* the last one made */
    int received_fds; /* with the last request */
    uint32_t next_handle;
    uint8_t reply[160 * 1024];
};

/** fake_listen() - a socket in a private folder, and the thread that accepts one client. */
void fake_listen(struct fake_daemon *fake);

/** fake_open() - fake_listen() and a session with it. */
struct attnd_session *fake_open(struct fake_daemon *fake);

/** fake_die() - as kill -9 looks from outside: the connection ends, the rings stay as they are. */
void fake_die(struct fake_daemon *fake);

/** fake_stop() - end the thread, remove the socket, free everything. A session that did not get as
 * far as Mapped must be closed before. */
void fake_stop(struct fake_daemon *fake);

/** fake_take() - the next submission. Return: 1, or 0 if there is none. */
int fake_take(struct fake_daemon *fake, struct attnd_sqe *sqe);

/** fake_post() - a completion, with a wake-up if the client announced that it sleeps. Return: 1 if
 * it did. */
int fake_post(struct fake_daemon *fake, const struct attnd_cqe *cqe);

#endif
