/*
 * attnd_cuda.h - libattnd-cuda: memory of the service's GPU in an engine's own CUDA context.
 *
 * A library of its own beside libattnd, which needs no CUDA: link -lattnd-cuda -lattnd -lcuda.
 *
 * Under MPS a GPU fault of any process, or the death of the worker, ends the context of every
 * engine; what they mapped is still there. An engine comes back as a new process: one that MPS has
 * turned away while it recovers is turned away for good.
 */
#ifndef ATTND_CLIENT_CUDA_ATTND_CUDA_H
#define ATTND_CLIENT_CUDA_ATTND_CUDA_H

#include <cuda.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct attnd_session;

/**
 * attnd_cuda_map() - device memory into the address space of the current context's device
 * @memory:  of attnd_memory_create_device(), or a pool's (attnd_pool_info()) in device memory
 * @address: receives where it lies, for reading and writing; all of it, attnd_memory_info() says
 *           how much that is
 * May be called while kernels run, and more than once: every mapping is of the same bytes, and
 * keeps them alive beyond the handle, the pool, the session and the service, until it is unmapped.
 * Threads: any with a current context. Blocks for some 10 us and more for a large memory.
 * Return: 0; -ATTND_E_UNKNOWN; -ATTND_E_UNSUPPORTED (host memory); -ATTND_E_INVALID (no current
 * context); -ATTND_E_NO_MEMORY; -ATTND_E_SYSTEM, attnd_last_fault() has the CUresult as value.
 */
int attnd_cuda_map(struct attnd_session *session, uint32_t memory, CUdeviceptr *address);

/**
 * attnd_cuda_unmap() - the reverse; nothing of this process may use the address any more
 * @address: from attnd_cuda_map(); needs no session
 * Return: 0; -ATTND_E_SYSTEM.
 */
int attnd_cuda_unmap(CUdeviceptr address);

#ifdef __cplusplus
}
#endif
#endif
