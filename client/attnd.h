/*
 * attnd.h - the attention service, as an engine sees it.
 *
 * An engine opens a session, shares KV pools with the service, plans a batch once, and runs the
 * plan layer after layer. Plans, advances, appends and runs are submitted over shared memory and
 * complete asynchronously; everything else is a call that returns when it is done.
 *
 * Threads: in one session, one thread may submit (attnd_plan_set, attnd_plan_advance, attnd_append,
 * attnd_run, attnd_merge_state, attnd_cancel) while one other waits (attnd_wait). All other calls
 * take a lock and may be made from any thread. Sessions are independent of each other. Fork: a
 * session belongs to the process that opened it. In a child every call returns -ATTND_E_FORKED,
 * attnd_close() only frees the child's copy, and the shared mappings are not there. Errors: 0 (or a
 * count) on success, -ATTND_E_* otherwise; attnd_last_fault() tells field, index, value and limit
 * of the calling thread's last failure, attnd_fault_string() makes it a sentence. Structs that
 * begin with `size`: set it to sizeof; fields beyond an older size read as zero.
 *
 * Arrays: a pointer says nothing of a length, so each array is as long as its comment says, in
 * brackets: of a count beside it, or of the last entry of the array that divides it. The library
 * reads that many entries, whatever is there. What it reads is checked by the service, in its own
 * copy; the two entries that say how long another array is (kv_indptr[requests] and
 * page_indptr[entries]) are believed, once they are not negative. NULL where a comment does not
 * allow it, for an array that has entries, is -ATTND_E_INVALID.
 *
 * Shapes follow FlashInfer's names: q and o are [rows, heads_q, head_dim], page tables are CSR,
 * kv_len = page_size * (pages - 1) + last_page_len.
 */
#ifndef ATTND_H
#define ATTND_H

#include "schemas/errors.h"
#include "schemas/executor.h"
#include "schemas/variant.h"
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

#define ATTND_DTYPE_FP16 1u
#define ATTND_DTYPE_BF16 2u
#define ATTND_DTYPE_FP8_E4M3 3u /* pools only; rows beside them are of 16 bits */
#define ATTND_DTYPE_FP8_E5M2 4u /* schemas/variant.h tells of scales and rounding */

/* A row that sees no key at all is o = 0, lse = -inf; or lse = its sink, where its head has one. */
#define ATTND_CAUSAL 0x1u       /* query i of a request sees keys j <= kv_len - qo_len + i */
#define ATTND_LSE_LN 0x2u       /* lse in natural logarithm; base 2 otherwise */
#define ATTND_SHARED_PAGES 0x4u /* requests side by side begin with the same pages: a hint */

#define ATTND_SKIP_SUCCESS 0x1u /* an operation that succeeds posts no completion */

/* ---- session ---- */

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
 * is there or /run/attnd/attnd.sock is not. Else it is the system's, /run/attnd/attnd.sock.
 * Blocks for the handshake, at most 5 s. Return: 0 and *session, which attnd_close() frees;
 * -ATTND_E_DISCONNECTED (field socket, value errno) nobody answers there; -ATTND_E_PERMISSION
 * (field socket) this user is not admitted, or (field daemon_uid) another user (value) listens
 * there than is expected (limit);
 * -ATTND_E_VERSION; -ATTND_E_RANGE (ring_entries, arena, a socket's path of over 107 bytes, or
 * sessions: as many as it takes, or takes of one process); -ATTND_E_INVALID (executor, reserved);
 * -ATTND_E_NO_MEMORY; -ATTND_E_SYSTEM.
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

/* ---- memory: buffers that runs name (q, o, lse, k, v) and pools lie in ---- */

/**
 * attnd_memory_create() - memory made by the service, zeroed, mapped here
 * @size_bytes: rounded up to pages
 * @address:    receives the mapping; may be NULL if it is not wanted
 * Blocking: until a GPU's worker has pinned it, some half second a GiB, a piece of each session's
 * memories in turn; runs go on meanwhile. Return: 0 and *memory (> 0, a handle of this session);
 * -ATTND_E_RANGE; -ATTND_E_NO_MEMORY (field size: limit what is left of --memory-max or
 * --host-memory-max, 0: it cannot be pinned; field memory: the service holds as many as it can,
 * for which `ulimit -n` may be the reason). A worker that dies meanwhile leaves the pinning to the
 * next one, and what is wrong shows at the runs that name the memory. If a signal ended the worker
 * that was pinning 64 MiB or more, no other one tries: -ATTND_E_NO_MEMORY, limit 0, here or there.
 */
int attnd_memory_create(struct attnd_session *session, uint64_t size_bytes, uint32_t *memory,
                        void **address);

/**
 * attnd_memory_create_device() - memory made by the service on the worker's GPU
 * @size_bytes: rounded up to pages of the GPU, 2 MiB
 * It outlives the worker, not the service. Nothing maps it here: libattnd-cuda does
 * (attnd_cuda_map()), or the engine with what attnd_memory_fd() gives. Its contents at first are
 * undefined: write before you let anybody read. Return: 0 and *memory; -ATTND_E_UNSUPPORTED (field
 * memory_kind) where the backend is not cuda; -ATTND_E_NO_MEMORY (field size: the GPU has no more,
 * or limit is what is left of --device-memory-max; the host's budgets do not count).
 */
int attnd_memory_create_device(struct attnd_session *session, uint64_t size_bytes,
                               uint32_t *memory);

/**
 * attnd_memory_register() - memory of the engine: a memfd sealed with F_SEAL_SHRINK
 * @fd: stays the caller's and may be closed after the call; not mapped by the library
 * It counts against the service's budgets with all of @size_bytes, touched or not: a GPU pins it.
 * Blocking: until that is done, as attnd_memory_create(). Return: 0 and *memory;
 * -ATTND_E_PERMISSION (field seals); -ATTND_E_UNSUPPORTED (field memory) a memfd of huge pages,
 * which no seal makes safe; -ATTND_E_RANGE (field size); -ATTND_E_NO_MEMORY as there.
 */
int attnd_memory_register(struct attnd_session *session, int fd, uint64_t size_bytes,
                          uint32_t *memory);

/* Where memory lies, and what stands for it. The service makes the first two. */
#define ATTND_MEMORY_HOST 1u   /* a memfd */
#define ATTND_MEMORY_DEVICE 2u /* of the worker's GPU: cuMemCreate(), exported as a descriptor */
#define ATTND_MEMORY_POOL 3u   /* in a CUmemoryPool: its descriptor and CUmemPoolPtrExportData */
#define ATTND_MEMORY_IPC 4u    /* cuMemAlloc() or cudaMalloc(): CUipcMemHandle, no descriptor */

#define ATTND_MEMORY_HANDLE_BYTES 64

struct attnd_memory_desc {
    uint32_t size;
    uint32_t memory_kind; /* ATTND_MEMORY_* */
    int fd;               /* stays the caller's and may be closed after the call; -1 for IPC */
    uint32_t reserved;    /* 0 */
    uint64_t size_bytes;  /* from its base; may be less than there is */
    uint8_t handle[ATTND_MEMORY_HANDLE_BYTES]; /* of POOL and IPC */
};

/**
 * attnd_memory_import() - memory of the engine, of any kind
 * @desc: borrowed for the call
 * Memory of the GPU is mapped by the worker before this returns, so what is wrong with it is said
 * here. (libattnd-cuda's attnd_cuda_export() finds out of what kind a pointer is and calls this.)
 *
 * How long it lives: HOST and DEVICE as long as the service holds the descriptor, which is until
 * attnd_memory_release() and the last pool or operation that names it; the engine may free its own
 * mapping or die. POOL and IPC belong to the process that allocated them: it must not free them
 * before attnd_memory_release() has returned 0 (attnd_close() does not wait for that), or the
 * worker reads and writes whatever comes to lie there. If that process dies, its memory is still
 * there; but a worker that is started anew maps everything again, and finds IPC memory gone.
 * Operations that name it then complete with the fault that this call would return.
 *
 * Blocks until the worker has answered; milliseconds. Return: 0 and *memory; -ATTND_E_UNSUPPORTED
 * the worker's backend has no such kind, or (field device) it lies on another GPU (value, as the
 * service counts) than the service's (limit); -ATTND_E_PERMISSION POOL or IPC without --trust
 * (field memory_kind), or a memfd without its seals; -ATTND_E_INVALID the descriptor is no memory
 * of the GPU's driver; -ATTND_E_DEVICE the driver refuses it: it is not what it is said to be, or
 * gone (value: the CUresult); -ATTND_E_RANGE it is smaller than size_bytes (limit: what there is, 0
 * where the driver does not tell); -ATTND_E_NO_MEMORY; -ATTND_E_WORKER_RESTARTED (not of HOST) the
 * worker died meanwhile, or is being started: call again.
 */
int attnd_memory_import(struct attnd_session *session, const struct attnd_memory_desc *desc,
                        uint32_t *memory);

struct attnd_memory_info {
    uint32_t size;
    uint32_t memory_kind; /* ATTND_MEMORY_* */
    uint64_t size_bytes;  /* as made: rounded up; as imported */
    void *address;        /* its mapping here, or NULL */
};

/** attnd_memory_info() - of memory that was made or imported. Return: 0; -ATTND_E_UNKNOWN. */
int attnd_memory_info(struct attnd_session *session, uint32_t memory,
                      struct attnd_memory_info *info);

/**
 * attnd_memory_fd() - the descriptor of device memory made by the service, to import with
 * cuMemImportFromShareableHandle(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
 * Return: a duplicate, close-on-exec, which the caller closes; -ATTND_E_UNKNOWN;
 * -ATTND_E_UNSUPPORTED host memory, whose mapping is at attnd_memory_address(), or the engine's
 * own; -ATTND_E_SYSTEM.
 */
int attnd_memory_fd(struct attnd_session *session, uint32_t memory);

/** attnd_memory_address() - where the library mapped it in this process, NULL if it did not. */
void *attnd_memory_address(const struct attnd_session *session, uint32_t memory);

/** attnd_memory_release() - -ATTND_E_BUSY while a pool lies in it or operations in flight name it.
 * Of POOL and IPC memory it returns when the worker has let go: it may be freed then. That may be
 * behind host memory of others that is being pinned, which takes seconds where it is many GiB.
 */
int attnd_memory_release(struct attnd_session *session, uint32_t memory);

/* ---- pools ---- */

/* One K or V plane of one layer: element [page, token, head, d], of 2 bytes, of fp8 1, lies that
 * many times page * stride_page + token * stride_token + head * stride_head + d behind
 * offset_bytes. Strides in elements, >= 0: NHD, HND, 5-D, split K and V are all strides. */
struct attnd_plane {
    uint32_t memory;
    uint64_t offset_bytes;
    int64_t stride_page, stride_token, stride_head;
};

enum attnd_page_owner {
    ATTND_PAGES_OF_SERVICE = 1, /* leased: attnd_pages_alloc() and its kin */
    ATTND_PAGES_OF_ENGINE = 2   /* the engine hands out ids 0..pages-1 itself */
};

struct attnd_pool_desc {
    uint32_t size;
    uint32_t layers, pages, page_size; /* 1..1024; 1..2^24; tokens a page, 1..2^20 */
    uint32_t heads_kv;                 /* 1..1024 */
    uint32_t dim_qk, dim_vo; /* 16, 32, .. 256, equal; 192, 128; 576, 512: V may lie in K's rows */
    uint32_t dtype;          /* of K and V: ATTND_DTYPE_* */
    uint32_t page_owner;
    const struct attnd_plane *k, *v; /* [layers] each, or both NULL: the service makes the memory,
                                        NHD: [layer][K, V][page][token][head][dim_qk] */
    uint32_t memory_kind; /* of memory the service makes: ATTND_MEMORY_*; 0: host. 0 with planes of
                             one's own */
};

/**
 * attnd_pool_create() - a pool of pages, in memory of one's own or in new memory of the service
 * @desc: borrowed for the call
 * New host memory is zeroed and mapped here (attnd_pool_info()), new device memory is neither.
 * Blocking: for new host memory as attnd_memory_create(). Return: 0 and *pool; -ATTND_E_RANGE (a
 * plane that leaves its memory, a size that overflows), -ATTND_E_UNKNOWN, -ATTND_E_UNSUPPORTED (a
 * head_dim or dtype that the worker has no variant for: limit is one that it has; a dim_vo that
 * does not go with dim_qk), -ATTND_E_NO_MEMORY (as there).
 */
int attnd_pool_create(struct attnd_session *session, const struct attnd_pool_desc *desc,
                      uint32_t *pool);

/**
 * attnd_pool_create_leased() - the usual pool: host memory of the service, pages by leases
 * The rest as in struct attnd_pool_desc. Return: as attnd_pool_create().
 */
int attnd_pool_create_leased(struct attnd_session *session, uint32_t layers, uint32_t pages,
                             uint32_t page_size, uint32_t heads_kv, uint32_t head_dim,
                             uint32_t dtype, uint32_t *pool);

/* A pool. The arrays are the session's; desc.k and desc.v are there for any memory. */
struct attnd_pool_info {
    uint32_t size;
    uint32_t memory; /* of a pool made by the service, as this session names it; 0 otherwise */
    void *address;   /* its mapping here, or NULL */
    uint64_t memory_bytes;
    uint32_t writable;
    struct attnd_pool_desc desc;
};

/** attnd_pool_info() - @info's desc.k and desc.v stay valid until the pool is released. */
int attnd_pool_info(struct attnd_session *session, uint32_t pool, struct attnd_pool_info *info);

#define ATTND_TOKEN_BYTES 16
struct attnd_token {
    uint8_t bytes[ATTND_TOKEN_BYTES];
};

/**
 * attnd_pool_share() - a token with which another session can attach the pool
 * @writable: 0 binds the operations of the other session to reading (append is refused); it does
 * not bind its mapping
 * The token is good for as long as the pool lives, for any number of sessions. Return: 0;
 * -ATTND_E_UNKNOWN; -ATTND_E_PERMISSION @writable, and this session may only read.
 */
int attnd_pool_share(struct attnd_session *session, uint32_t pool, int writable,
                     struct attnd_token *token);

/** attnd_pool_attach() - the pool lives until its creator and every attached session let it go.
 * Return: 0 and *pool, a handle of this session; -ATTND_E_UNKNOWN no pool has this token;
 * -ATTND_E_NO_MEMORY. */
int attnd_pool_attach(struct attnd_session *session, const struct attnd_token *token,
                      uint32_t *pool);

/** attnd_pool_release() - -ATTND_E_BUSY while a plan of this session uses it. Frees its leases. */
int attnd_pool_release(struct attnd_session *session, uint32_t pool);

/* ---- plans ---- */

/* Capacities; what attnd_plan_set() is given must fit in them. */
struct attnd_plan_args {
    uint32_t size;
    uint32_t pool;
    uint32_t requests;    /* entries of all levels together, 1..2^20 */
    uint32_t rows;        /* query rows (tokens), 1..2^22 */
    uint32_t pages;       /* of all entries together, reserve_pages included, 1..2^26 */
    uint32_t levels;      /* 1 without cascade; at most 8 */
    uint32_t heads_q;     /* multiple of the pool's heads_kv, up to 128 times and 1024 */
    uint32_t fixed_split; /* the shortest fixed_split of a variant set on it; 0: none has one */
};

/**
 * attnd_plan_create() - room for batches on one pool
 * @args: borrowed for the call
 * Return: 0 and *plan; -ATTND_E_UNKNOWN; -ATTND_E_RANGE and -ATTND_E_INVALID naming the capacity;
 * -ATTND_E_UNSUPPORTED the worker has no variant for the pool's head_dim or dtype (as for
 * attnd_pool_create(); the worker may have been replaced since); -ATTND_E_NO_MEMORY the service's
 * --heap is used up; -ATTND_E_NO_SPACE, field arena: the session was opened without arena_bytes, a
 * batch that fills the plan is longer than what it got, and value says what to ask for.
 */
int attnd_plan_create(struct attnd_session *session, const struct attnd_plan_args *args,
                      uint32_t *plan);
/** attnd_plan_destroy() - -ATTND_E_BUSY while operations of it are in flight. */
int attnd_plan_destroy(struct attnd_session *session, uint32_t plan);

/* One cascade level: its requests partition the same query rows. int32 CSR arrays, borrowed for the
 * call that submits them. A row's keys are those of its request at every level, all of them but at
 * the last, where ATTND_CAUSAL holds and qo_len and kv_len are that level's. */
struct attnd_level {
    uint32_t requests;               /* 0 is a batch without work: its runs complete at once */
    const int32_t *qo_indptr;        /* [requests + 1] */
    const int32_t *kv_indptr;        /* [requests + 1] */
    const int32_t *kv_indices;       /* [kv_indptr[requests]] page ids */
    const int32_t *kv_last_page_len; /* [requests]; 1..page_size; of no pages: ignored */
};

/* Elements of 2 bytes, of lse 4; not negative; both 0: contiguous. */
struct attnd_strides {
    int64_t row, head;
};

struct attnd_batch {
    uint32_t size;
    uint32_t levels;        /* 0: 1 */
    uint32_t heads_q;       /* 0: the plan's */
    uint32_t dtype;         /* of q, o, appended k, v: the pool's, or 0; beside fp8 of 16 bits */
    uint32_t flags;         /* ATTND_CAUSAL (last level only), ATTND_LSE_LN, ATTND_SHARED_PAGES */
    uint32_t reserve_pages; /* page slots of each request of the last level kept for advance */
    float sm_scale;         /* finite, not negative; 0: 1/sqrt(head_dim) */
    const struct attnd_level *level; /* [levels], outermost (shared prefix) first */
    struct attnd_strides q, o, lse, k, v;
    const struct attnd_variant *variant; /* schemas/variant.h; borrowed for the call; NULL: plain */
    const int32_t *mask_indptr; /* [requests + 1] of the last level, bytes: with a mask only */
};

/* Fields of every submitted operation. Zero-initialise; a call may be given NULL for zeros. */
struct attnd_op {
    uint64_t user_data;  /* comes back in the completion */
    uint16_t lane;       /* 0..63: operations of a lane take effect in order; lanes are unordered */
    uint16_t flags;      /* ATTND_SKIP_SUCCESS */
    uint32_t timeout_us; /* append and run: completes with -ATTND_E_TIMEOUT after this; 0: never */
};

/**
 * attnd_plan_set() - plan a batch
 * @batch: copied before the call returns, but for arrays in attnd_tables_memory(). Its arrays are
 * as long as struct attnd_level and struct attnd_batch say; of each level kv_indptr[requests] says
 * how many entries kv_indices has, and of level 0 qo_indptr[requests] how many rows there are
 * Completes when the tiles are where the worker reads them; a run of the same lane may be submitted
 * at once behind it. Completes with -ATTND_E_BUSY if another lane's operation of this plan is in
 * flight, and with -ATTND_E_RANGE, -ATTND_E_INVALID, -ATTND_E_NO_SPACE, -ATTND_E_NOT_LEASED naming
 * field, index, value and limit if the batch is malformed; the plan then is what it was. Operations
 * of the plan that were submitted behind it in its lane, before its completion was taken, were
 * meant for the batch that was refused: they complete with -ATTND_E_INVALID, field plan. The memory
 * for split results of the batch is part of the plan: more than the service has for it
 * (--scratch; half of that where streams are served too) completes with -ATTND_E_NO_SPACE, field
 * partials. Runs that do not fit beside others wait. Return: 0 submitted; -ATTND_E_FULL ring or
 * arena have no room: wait for completions and repeat; -ATTND_E_NO_SPACE the batch can never fit in
 * the arena; -ATTND_E_DISCONNECTED.
 */
int attnd_plan_set(struct attnd_session *session, uint32_t plan, const struct attnd_batch *batch,
                   const struct attnd_op *op);

/* New absolute lengths of all entries, level 0's first, and pages appended to their lists. Lengths
 * may shrink too. Query rows stay as they were set. One that shrinks a request into leading pages
 * that are read once for several (attnd --cascade) plans again, and waits for runs of the plan. */
struct attnd_advance {
    uint32_t size;
    uint32_t entries;            /* of the batch, over all levels */
    const int32_t *kv_len;       /* [entries] tokens, at most the planned pages hold */
    const int32_t *page_indptr;  /* [entries + 1] or NULL: no new pages */
    const int32_t *page_indices; /* [page_indptr[entries]] */
};

/**
 * attnd_plan_advance() - a new generation of lengths
 * @advance: copied before the call returns. entries is how many the caller's arrays have, and it is
 * refused unless it is how many the batch has; page_indptr[entries] says how many page_indices has
 * What was submitted before keeps its lengths, however long it waits; what comes behind it in its
 * lane reads the new ones; another lane's, before it has completed, either.
 * Completes with the faults of attnd_plan_set(), by whose names it calls what it refuses: requests
 * (entries), kv_indptr (page_indptr: more pages than are reserved), kv_indices (page_indices); the
 * plan then is what it was. Return: as attnd_plan_set().
 */
int attnd_plan_advance(struct attnd_session *session, uint32_t plan,
                       const struct attnd_advance *advance, const struct attnd_op *op);

/* A place in registered memory. memory 0: absent. */
struct attnd_tensor {
    uint32_t memory;
    uint64_t offset_bytes; /* 16-byte aligned (lse: 4) */
};

/* K and V rows of the batch's new tokens, [rows, heads_kv, head_dim] each: row i of request r (last
 * level) is stored at position kv_len - qo_len + i of that request. Where V lies in the rows of K
 * (dim_vo of the pool), both are stored in one place, and V is what K begins with. */
struct attnd_append_args {
    uint32_t size;
    uint32_t layer;
    struct attnd_tensor k, v;
};

/** attnd_append() - store K and V rows in the pages of the plan. -ATTND_E_SHARED_PAGE if a page to
 * be written has more than one lease, -ATTND_E_NOT_LEASED if the session has given it away since
 * the plan was set; -ATTND_E_PERMISSION in a pool attached for reading. Pages may be freed or
 * offered when appends to them have completed, not before. */
int attnd_append(struct attnd_session *session, uint32_t plan, const struct attnd_append_args *args,
                 const struct attnd_op *op);

/* q and o: [rows, heads_q, head_dim], lse: float [rows, heads_q], strides as the batch says. */
struct attnd_run_args {
    uint32_t size;
    uint32_t layer;
    struct attnd_tensor q, o;
    struct attnd_tensor lse; /* memory 0: not wanted */
};

/**
 * attnd_run() - attention of the planned batch on one layer
 * The service reads q when the run is scheduled and writes o before it completes.
 * Memory: it sees what this thread stored before the call, in the pool too; o and lse are seen by
 * the thread that attnd_wait() has given the completion.
 * On a GPU the first run of a head_dim and dtype that is not in use yet, submitted or launched,
 * waits until all runs in flight have ended, and so do the runs that anybody submits or launches
 * behind it. Then its kernels come beside those that were used. Nothing is refused for that.
 * Completes with -ATTND_E_INVALID field plan: nothing was set, or it was submitted behind a set
 * that was refused; -ATTND_E_OVERLAP: o or lse lie in q, in each other or in anybody's pool, which
 * begins at limit; -ATTND_E_UNKNOWN, -ATTND_E_RANGE, -ATTND_E_INVALID naming layer, q, o or lse;
 * -ATTND_E_WORKER_RESTARTED: run it again; -ATTND_E_TIMEOUT, -ATTND_E_CANCELLED; -ATTND_E_DEVICE;
 * and what attnd_memory_import() says of memory that a later worker could not bring in.
 * Return: as attnd_plan_set().
 */
int attnd_run(struct attnd_session *session, uint32_t plan, const struct attnd_run_args *args,
              const struct attnd_op *op);

/**
 * attnd_run_sync() - attnd_run() on lane 0, and wait for it
 * For an engine that has nothing in flight but what stands in front of this run on lane 0,
 * submitted with ATTND_SKIP_SUCCESS: completions of other operations are taken and dropped, but for
 * the first failure. Threads: the one that submits, which also waits. Blocks until the run has
 * ended. Return: 0; the code of the first operation that failed, or as attnd_run() and
 * attnd_wait(), with the rest in attnd_last_fault().
 */
int attnd_run_sync(struct attnd_session *session, uint32_t plan, const struct attnd_run_args *args);

/**
 * attnd_cancel() - stop every operation of this session submitted with @user_data, if it can be
 * Those stopped complete with -ATTND_E_CANCELLED; o is then undefined. Posts nothing itself.
 */
int attnd_cancel(struct attnd_session *session, uint64_t user_data);

enum attnd_operation {
    ATTND_PLAN_SET = 1,
    ATTND_PLAN_ADVANCE = 2,
    ATTND_APPEND = 3,
    ATTND_RUN = 4,
    ATTND_MATCH = 6, /* attnd_prefix.h, from here on */
    ATTND_PUBLISH = 7,
    ATTND_CLAIM = 8,
    ATTND_ABANDON = 9,
    ATTND_PIN = 10,
    ATTND_UNPIN = 11,
    ATTND_MERGE = 12,       /* attnd_merge.h */
    ATTND_PAGES_CLAIM = 13, /* attnd_pages.h */
    ATTND_PAGES_READY = 14
};

struct attnd_completion {
    uint64_t user_data;
    struct attnd_fault fault; /* code 0: success */
    uint32_t operation;       /* enum attnd_operation */
    uint32_t lane;
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC in the service: started, finished */
};

/* The findings of the service in a batch; of a plan_set that succeeded. */
struct attnd_plan_info {
    uint32_t size;
    uint32_t shared_groups; /* runs of requests whose equal leading pages are read once */
    uint32_t fused;         /* 1: compute-bound and memory-bound work is done at once */
    uint64_t bytes_saved;   /* of K and V, that a run of one layer need not read again */
};

/**
 * attnd_plan_info() - what a plan_set found
 * @completion: of attnd_plan_set(), with fault code 0
 * @info: receives it; size is set by the caller
 *
 * Threads: any. Blocking: never. Return: 0; -ATTND_E_INVALID it is no such completion.
 */
int attnd_plan_info(const struct attnd_completion *completion, struct attnd_plan_info *info);

#define ATTND_FOREVER UINT64_MAX

/**
 * attnd_wait() - collect completions
 * @completions: [count]
 * @timeout_ns:  0: do not block; ATTND_FOREVER
 * Spins for up to 100 us (20 with two processors), then sleeps in ppoll. A signal's handler runs
 * and the wait goes on: an engine that must leave then polls attnd_fd() instead. Return: 1..count
 * completions; 0 timed out; -ATTND_E_DISCONNECTED the service died and all it posted was taken.
 */
int attnd_wait(struct attnd_session *session, struct attnd_completion *completions, uint32_t count,
               uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#include "attnd_launch.h" /* launched runs: for CUDA streams and graphs */
#include "attnd_pages.h"  /* leases of pages that the service owns */
#include "attnd_prefix.h" /* one prefix cache for all engines of a pool */

#endif
