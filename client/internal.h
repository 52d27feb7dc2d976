/*
 * internal.h - a session from the inside, and what the files of libattnd say to each other.
 *
 * The struct is cut by the threads that touch it. The submitting and the waiting thread share no
 * line that either writes, so a run and its completion cost no lock, no allocation and no bounced
 * line of our own making. Everything else happens under call_lock (one request and its reply at a
 * time) or objects_lock (short, never held across a system call that blocks). Order: call_lock
 * first.
 */
#ifndef ATTND_CLIENT_INTERNAL_H
#define ATTND_CLIENT_INTERNAL_H

#include "client/attnd.h"
#include "ipc/fdpass.h"
#include "ipc/ring.h"
#include "ipc/shm.h"
#include "ipc/wake.h"
#include "schemas/abi.h"
#include "schemas/atomics.h"
#include "schemas/attnd.pb-c.h"

#include <pthread.h>

#define ATTND_CALL_TIMEOUT_NS 5000000000u
/* Of a call that is answered when the worker has done something: pinned pages one by one, or ended
 * a run in flight. To give up is to lose the session, so it is not because of what others have
 * asked of the worker first. */
#define ATTND_CALL_LONG_TIMEOUT_NS 300000000000u

/* ---- arena.c: where batches lie until the daemon has copied them ---- */

/* The slot that uses the arena up to @end. */
struct attnd_arena_mark {
    uint64_t end;
    uint32_t index;
};

/* Positions run freely; a position modulo bytes is an offset. [begin, end) is in use. */
struct attnd_arena {
    uint8_t *base;
    uint64_t bytes;
    uint64_t begin, end;
    uint64_t reserved; /* position of the block handed out by reserve, not yet committed */
    struct attnd_arena_mark *marks; /* [entries], a FIFO */
    uint32_t entries;
    uint32_t mark_begin, mark_end;
};

/** attnd_arena_init() - over @base, for a ring of @entries. Return: 0 or -ATTND_E_NO_MEMORY. */
int attnd_arena_init(struct attnd_arena *arena, void *base, uint64_t bytes, uint32_t entries);
void attnd_arena_free(struct attnd_arena *arena);

/**
 * attnd_arena_reserve() - a contiguous block, 64-byte aligned
 * @sq_index, @in_flight: the next slot, and how many before it the daemon has not consumed; the
 *           blocks of all others are free again
 * @offset_bytes: where the block begins; it stays free until attnd_arena_commit()
 * Return: 0; -ATTND_E_FULL, try again later; -ATTND_E_NO_SPACE, never.
 */
int attnd_arena_reserve(struct attnd_arena *arena, uint64_t bytes, uint32_t sq_index,
                        uint32_t in_flight, uint64_t *offset_bytes);

/** attnd_arena_commit() - the first @bytes of the block belong to slot @sq_index. */
void attnd_arena_commit(struct attnd_arena *arena, uint64_t bytes, uint32_t sq_index);

/* ---- objects.c: what the session knows of its handles ---- */

enum attnd_object_kind {
    ATTND_OBJECT_MEMORY,
    ATTND_OBJECT_POOL,
    ATTND_OBJECT_PLAN,
    ATTND_OBJECT_PREFIX,
    ATTND_OBJECT_PREPARED
};

/* The engine's allocation that memory was imported from; all zero: nobody asks. */
struct attnd_origin {
    uint64_t address; /* its base in this process */
    uint64_t id;      /* the driver's number of it, never given out twice */
};

struct attnd_object {
    struct attnd_object *next;
    enum attnd_object_kind kind;
    uint32_t handle;
    uint64_t serial; /* no other object of the session has or had it: a handle comes again */
    int ending;      /* the service is asked to end it: launches do not find it */
    union {
        struct {
            struct attnd_shm shm; /* address NULL: not mapped here; fd: of device memory, else -1 */
            uint32_t uses;        /* the engine's handle and every pool that came with it */
            uint32_t kind;        /* enum attnd_memory_kind */
            uint64_t size_bytes;
            struct attnd_origin origin;
        } memory;
        struct {
            struct attnd_pool_info info;
            struct attnd_plane *planes; /* k[layers], v[layers] */
        } pool;
        struct {
            uint32_t heads_q, dtype, pool;
        } plan;
        struct {
            uint32_t plan;
            struct attnd_prepare_args args;
        } prepared;
        struct attnd_prefix_info prefix;
    } u;
};

/* ---- the session ---- */

struct attnd_stream_launcher; /* client/cuda/stream.c */

struct attnd_session {
    /* The submitting thread. */
    struct attnd_producer sq;
    struct attnd_doorbell doorbell;
    struct attnd_arena arena;
    int arena_chosen; /* the engine said how large it is */
    uint8_t *tables;  /* attnd_tables_memory(), behind what arena.c gives out; NULL: none */
    uint64_t tables_bytes;

    /* The waiting thread. */
    _Alignas(ATTND_CACHE_LINE) struct attnd_consumer cq;
    uint32_t *cq_need;
    uint32_t refusals; /* completions of refused sets that were taken; the submitting thread reads
                          it */
    uint64_t spin_ns;
    uint64_t glanced_ns;           /* when a wait that does not block last asked the socket */
    int armed;                     /* need was left set by attnd_arm() */
    const int32_t *results_shared; /* [ATTND_RESULT_WORDS] behind the completions; NULL: none */
    int32_t *results;              /* [ATTND_RESULT_WORDS] of the last wait, copied */
    uint32_t results_used;

    /* Read by all; `gone` goes from 0 to 1 once. */
    _Alignas(ATTND_CACHE_LINE) uint32_t gone;
    uint32_t forks; /* of the process when the session was opened */
    int socket;
    int notify;      /* the daemon writes it when cq_need is set */
    int doorbell_fd; /* -1 with futex doorbells */
    int event;       /* epoll of notify and the socket's end: attnd_fd() */
    struct attnd_shm submission, completion;
    struct attnd_info info;
    uint32_t execute;              /* enum attnd_executor: what the engine wishes */
    uint32_t by_engine;            /* 1: it executes its launched runs, and has no mailbox */
    struct attnd_shm account;      /* of that: struct attnd_engine_account; address NULL: none */
    uint32_t mailbox_memory;       /* handle; 0: no mailbox. Published last */
    struct attnd_mailbox *mailbox; /* where it lies in host memory; else NULL */

    /* Under call_lock. */
    _Alignas(ATTND_CACHE_LINE) pthread_mutex_t call_lock;
    uint64_t call_id;
    uint8_t *datagram; /* [attnd_call_buffer_bytes()] */

    /* Under objects_lock; handles come and go with call_lock held as well. */
    pthread_mutex_t objects_lock;
    struct attnd_object *objects;
    uint64_t objects_added;

    /* libattnd-cuda's, under objects_lock; it goes before the mailbox does. It is made under
     * launcher_lock: what it registers with the driver can be registered once. */
    pthread_mutex_t launcher_lock;
    struct attnd_stream_launcher *launcher;
    void (*launcher_end)(struct attnd_stream_launcher *launcher);
    /* Before the service is asked to end a prepared run or a plan, which it may refuse; NULL:
     * nobody wants to know. Called without a lock. */
    void (*prepared_ends)(struct attnd_stream_launcher *launcher, uint32_t prepared);
    void (*plan_ends)(struct attnd_stream_launcher *launcher, uint32_t plan);
    /* After the service has let a memory go, and before it is unmapped here. Likewise. */
    void (*memory_ends)(struct attnd_stream_launcher *launcher, uint64_t serial);
};

/* Forks this process has been born through; a session of another number is the parent's. */
extern uint32_t attnd_session_forks;

/** attnd_session_connect() - handshake.c: socket, hello, segments. Return: 0 or the fault. */
int attnd_session_connect(struct attnd_session *session, const struct attnd_open_args *args);

/** attnd_session_end() - the connection is of no more use: every thread learns it from `gone`. */
void attnd_session_end(struct attnd_session *session);

/** attnd_session_listen() - ppoll for a wake-up or the end of the daemon, at most @timeout_ns;
 * drains the first and notes the second in `gone`. Threads: the waiting one. */
void attnd_session_listen(struct attnd_session *session, uint64_t timeout_ns);

/** attnd_session_lost() - ask the socket, without blocking: 1 if the daemon is gone. */
int attnd_session_lost(struct attnd_session *session);

/* ---- fault.c ---- */

/** attnd_fault_raise() - make this the thread's last fault. Return: @code. */
int attnd_fault_raise(int code, enum attnd_field field, uint64_t index, int64_t value,
                      int64_t limit);
/** attnd_fault_unreachable() - the same of a service that cannot be reached, with errno @error:
 * attnd_last_fault_string() names the path that was @tried, which is copied. Return: @code. */
#define ATTND_FAULT_PATH_BYTES 108u /* of sockaddr_un */
int attnd_fault_unreachable(int code, int error, const char *tried);
/** attnd_fault_keep() - the same from a struct. Return: its code. */
int attnd_fault_keep(const struct attnd_fault *fault);
/** attnd_wake_memory() - a handle of the memory that holds the worker's wake word, once a session
 * @wake: where it is mapped, ATTND_PAGE_BYTES, until the handle is released
 * Return: 0; -ATTND_E_UNSUPPORTED the worker's kernels do not leave; as attnd_memory_create(). */
int attnd_wake_memory(struct attnd_session *session, uint32_t *memory, struct attnd_wake **wake);

/** attnd_lane_failed() - a fault made of a word of the mailbox, which the worker wrote or a writer
 * of the engine's. It names the lane; the word does not tell more. Return: as raised. */
static inline int attnd_lane_failed(uint32_t lane, uint32_t code)
{
    if (code == 0)
        return 0;
    return attnd_fault_raise(code <= INT32_MAX ? -(int)code : -ATTND_E_PROTOCOL, ATTND_F_NONE, lane,
                             0, 0);
}

/* ---- args.c: structs that begin with their size ---- */

/** attnd_args_take() - @from of whatever size into @to, zero-extended. Return: 0 or
 * -ATTND_E_INVALID (field args): NULL, or (field size) absurd, or longer with something set that we
 * do not know. */
int attnd_args_take(void *to, uint32_t to_bytes, const void *from);
/** attnd_args_give() - as much of @from into @to as to's size says, which is kept. */
int attnd_args_give(void *to, const void *from, uint32_t from_bytes);

/* ---- checks at the head of every call ---- */

static inline int attnd_session_check_owner(const struct attnd_session *session)
{
    if (session == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_NONE, 0, 0, 0);
    if (attnd_peek32(&attnd_session_forks) != session->forks)
        return attnd_fault_raise(-ATTND_E_FORKED, ATTND_F_NONE, 0, 0, 0);
    return 0;
}

static inline int attnd_session_check(const struct attnd_session *session)
{
    int rc = attnd_session_check_owner(session);
    if (rc == 0 && attnd_peek32(&session->gone))
        return attnd_fault_raise(-ATTND_E_DISCONNECTED, ATTND_F_SOCKET, 0, 0, 0);
    return rc;
}

/* ---- control.c: one request, one reply ---- */

struct attnd_rpc {
    Attnd__Request request; /* by the caller: the call and its case */
    int fd;                 /* to send, -1: none; stays the caller's */
    Attnd__Reply *reply;    /* in the session's buffer, until attnd_call_end() */
    int fds[ATTND_FDS_MAX]; /* received; attnd_call_end() closes what was not taken */
    int fd_count;
    uint64_t timeout_ns; /* 0: ATTND_CALL_TIMEOUT_NS */
};

#define ATTND_CALL_INIT                                                                            \
    {                                                                                              \
        .request = ATTND__REQUEST__INIT, .fd = -1                                                  \
    }
/* The same with what is asked: @WHICH is the call, as CALL_WHICH, and @message sets the request's
 * member of it, as in ATTND_CALL(UNPREPARE, .unprepare = &message). */
#define ATTND_CALL(WHICH, message)                                                                 \
    {                                                                                              \
        .request = {.base = PROTOBUF_C_MESSAGE_INIT(&attnd__request__descriptor),                  \
                    .call_case = ATTND__REQUEST__CALL_##WHICH,                                     \
                    message},                                                                      \
        .fd = -1                                                                                   \
    }

/**
 * attnd_call() - send @call's request and wait for its reply, at most call->timeout_ns
 * @expect: what a successful reply must hold
 * Return: 0 with call_lock held until attnd_call_end(); otherwise a fault, the lock released:
 * the daemon's answer, -ATTND_E_DISCONNECTED, or -ATTND_E_PROTOCOL, which ends the session.
 */
int attnd_call(struct attnd_session *session, struct attnd_rpc *call,
               Attnd__Reply__ResultCase expect);
void attnd_call_end(struct attnd_session *session, struct attnd_rpc *call);

/** attnd_call_secret() - a call that is answered with a token or a ticket; ended in any case.
 * Return: 0 and *@secret; as attnd_call(). */
int attnd_call_secret(struct attnd_session *session, struct attnd_rpc *call,
                      Attnd__Reply__ResultCase expect, struct attnd_token *secret);

/** attnd_call_take_fd() - the received descriptor is the caller's from here. */
int attnd_call_take_fd(struct attnd_rpc *call, int index);

/** attnd_call_buffer_bytes() - what session->datagram must hold: a datagram and its unpacking. */
size_t attnd_call_buffer_bytes(void);

/** attnd_call_broken() - the reply makes no sense: end the call and the session. */
int attnd_call_broken(struct attnd_session *session, struct attnd_rpc *call);

/* ---- import.c, for libattnd-cuda ---- */

/** attnd_import() - attnd_memory_import() of a checked @desc, to be found again by @origin. */
int attnd_import(struct attnd_session *session, struct attnd_memory_desc *desc,
                 const struct attnd_origin *origin, uint32_t *memory);
/** attnd_import_find() - the memory that was imported from @origin; 0: none. */
uint32_t attnd_import_find(struct attnd_session *session, const struct attnd_origin *origin);
/** attnd_import_stale() - memory that was imported from where now another allocation lies, @origin
 * of @size_bytes: it is gone; 0: none. */
uint32_t attnd_import_stale(struct attnd_session *session, const struct attnd_origin *origin,
                            uint64_t size_bytes);

/* ---- launch.c, for libattnd-cuda ---- */

/** attnd_mailbox_open() - the session's first call about launched runs, if it has made none yet:
 * afterwards session->by_engine says who executes them. Return: 0; -ATTND_E_UNSUPPORTED: field
 * mailbox, the service launches nothing; field executor, it cannot be as the session wishes. */
int attnd_mailbox_open(struct attnd_session *session);

/* ---- engine.c, for libattnd-cuda: where the engine executes its launched runs ---- */

/** attnd_prepared_args() - what a run was prepared with. Return: 0; -ATTND_E_UNKNOWN: also while it
 * is ending. */
int attnd_prepared_args(struct attnd_session *session, uint32_t prepared,
                        struct attnd_prepare_args *out, uint32_t *plan);
/** attnd_launcher_release() - attnd_object_release() of a plan or a prepared run (@kind). It is
 * ending from here on, so that no launch takes up again what the session's hook for it gives up; if
 * the service refuses, it is as it was. Return: 0 or the fault. */
int attnd_launcher_release(struct attnd_session *session, struct attnd_rpc *call,
                           enum attnd_object_kind kind, uint32_t handle);
/** attnd_plan_pool() - the pool that a plan was made for, and the plan's serial. Return: 0;
 * -ATTND_E_UNKNOWN: also while it is ending. */
int attnd_plan_pool(struct attnd_session *session, uint32_t plan, uint32_t *pool, uint64_t *serial);
/** attnd_plan_image_open() - the plan as kernels read it, struct attnd_plan_image at offset 0 of
 * @fd, which the caller closes and can map for reading only. Return: 0; -ATTND_E_UNKNOWN;
 * -ATTND_E_NO_MEMORY; as attnd_call(). */
int attnd_plan_image_open(struct attnd_session *session, uint32_t plan, int *fd,
                          uint64_t *size_bytes);
/** attnd_kernel_file() - the file of a kernel, attnd_kernel_number(), or of ATTND_KERNELS, the
 * module `engine`; the caller closes @fd. Return: 0; -ATTND_E_UNSUPPORTED (field backend, value
 * @kernel) the service has none; -ATTND_E_RANGE (field kernel); as attnd_call(). */
int attnd_kernel_file(struct attnd_session *session, uint32_t kernel, int *fd,
                      uint64_t *size_bytes);

/* ---- objects.c ---- */

/** attnd_object_find() - with objects_lock held; NULL if unknown. */
struct attnd_object *attnd_object_find(const struct attnd_session *session,
                                       enum attnd_object_kind kind, uint32_t handle);
/** attnd_object_add() - the session owns @object from here. */
void attnd_object_add(struct attnd_session *session, struct attnd_object *object);
/** attnd_object_release() - a call that gives @handle back and is answered with nothing; ended in
 * any case. Return: 0, and the handle is forgotten; as attnd_call(). */
int attnd_object_release(struct attnd_session *session, struct attnd_rpc *call,
                         enum attnd_object_kind kind, uint32_t handle);
/** attnd_object_drop_all() - @unmap 0: in a forked child, where nothing is mapped any more. */
void attnd_object_drop_all(struct attnd_session *session, int unmap);

#endif
