/*
 * attnd_memory.h - memory: buffers that runs name (q, o, lse, k, v) and pools lie in. Part of
 * attnd.h.
 */
#ifndef ATTND_MEMORY_H
#define ATTND_MEMORY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct attnd_session; /* attnd_session.h */

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

/* A place in registered memory. memory 0: absent. */
struct attnd_tensor {
    uint32_t memory;
    uint64_t offset_bytes; /* 16-byte aligned (lse: 4) */
};

#ifdef __cplusplus
}
#endif

#endif
