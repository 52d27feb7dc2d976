/*
 * attnd_cuda.h - libattnd-cuda: memory of the service's GPU in an engine's own CUDA context.
 *
 * A library of its own beside libattnd, which needs no CUDA: link -lattnd-cuda -lattnd -lcuda.
 *
 * Under MPS a GPU fault of any process, or the death of the worker, ends the context of every
 * engine; what they mapped is still there. An engine comes back as a new process: a process that
 * MPS has turned away while it recovers is turned away for good.
 */
#ifndef ATTND_CLIENT_CUDA_ATTND_CUDA_H
#define ATTND_CLIENT_CUDA_ATTND_CUDA_H

#include <cuda.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct attnd_session;
struct attnd_tensor; /* attnd_memory.h */

/**
 * attnd_cuda_map() - device memory into the address space of the current context's device
 * @memory:  of attnd_memory_create_device(), or a pool's (attnd_pool_info()) in device memory
 * @address: receives where it lies, for reading and writing; all of it, attnd_memory_info() says
 *           how much that is
 * May be called while kernels run, and more than once: every mapping is of the same bytes, and
 * keeps them alive beyond the handle, the pool, the session and the service, until it is unmapped.
 * Threads: any with a current context. Blocks for some 10 us and more for a large memory.
 * Return: 0; -ATTND_E_UNKNOWN; -ATTND_E_UNSUPPORTED (host memory); -ATTND_E_INVALID (no current
 * context); -ATTND_E_NO_MEMORY; -ATTND_E_DEVICE, attnd_last_fault() has the CUresult as value.
 */
int attnd_cuda_map(struct attnd_session *session, uint32_t memory, CUdeviceptr *address);

/**
 * attnd_cuda_unmap() - the reverse; what is submitted from now on may not use the address any more
 * @address: from attnd_cuda_map(); needs no session
 * Blocks until all that was submitted to the current context is over, which may use it. Not while a
 * stream captures: a graph of this process that uses the address must not be launched any more.
 * Return: 0; -ATTND_E_BUSY a stream captures, and the mapping stays; -ATTND_E_DEVICE.
 */
int attnd_cuda_unmap(CUdeviceptr address);

/**
 * attnd_cuda_export() - memory of the engine's GPU as a place that runs and pools can name
 * @address:    anywhere in an allocation of this process: a tensor that a framework cut out of a
 *              large one is as good as a whole one
 * @size_bytes: that must lie in the allocation from there
 * @tensor:     receives the allocation as memory of the session, and the offset of @address in it
 * The whole allocation is imported, once a session: of other tensors in it only the offset is found
 * out. The call that made it decides what the service must allow and how long it lives
 * (attnd_memory_import()):
 *   cuMemCreate() with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR   ATTND_MEMORY_DEVICE
 *   a CUmemoryPool made with that handle type                     ATTND_MEMORY_POOL, --trust
 *   cuMemAlloc(), cudaMalloc()                                    ATTND_MEMORY_IPC, --trust
 * PyTorch's default allocator is of the last kind. With expandable_segments it is of the first, and
 * a tensor may then span several allocations, which is refused (-ATTND_E_RANGE, limit says how much
 * lies in the first); cudaMallocAsync's own pool cannot be exported (-ATTND_E_UNSUPPORTED).
 *
 * Release tensor->memory before the allocation is freed, or emptied out of the framework's cache:
 * the service does not notice, and POOL and IPC memory is then no longer the engine's. Allocations
 * have numbers (CU_POINTER_ATTRIBUTE_BUFFER_ID), by which one that lies where another lay is told
 * from it: it is imported as a memory of its own, and the other's is released if nothing names it.
 * Threads: any with a current context; two that export the same allocation at once may import it
 * twice. Blocks as attnd_memory_import(). Return: 0; -ATTND_E_INVALID not memory of the GPU;
 * -ATTND_E_RANGE (field size, limit what is left from @address); -ATTND_E_UNSUPPORTED, field
 * memory: it was not made to be exported (value the CUresult); field device: it lies on another GPU
 * (value) than the service's (limit; -1: this process does not see that); -ATTND_E_DEVICE; what
 * attnd_memory_import() returns.
 */
int attnd_cuda_export(struct attnd_session *session, CUdeviceptr address, uint64_t size_bytes,
                      struct attnd_tensor *tensor);

/* ---- runs in the order of a stream ----
 *
 * A run that attnd_prepare() prepared becomes part of a stream, between the kernels before it and
 * those after it: q, and K and V in the pages, may be written by the former, o and lse are read by
 * the latter. The host takes no part in it, so a stream that is captured becomes part of a graph
 * that can be launched again and again: each launch attends to the lengths and pages that
 * attnd_plan_advance() has set by then.
 *
 *     attnd_prepare(session, plan, &args, &prepared[layer]);        once
 *     cuStreamBeginCapture(stream, ...);
 *     for each layer:
 *         ... kernels that write q, K and V of the layer
 *         attnd_cuda_run_on_stream(session, lane, prepared[layer], stream);
 *         ... kernels that read o
 *     cuStreamEndCapture(stream, &graph);
 *     for each token:
 *         attnd_plan_advance(session, plan, ...); attnd_wait(...);  or the reverse, see below
 *         cuGraphLaunch(executable, stream);
 *
 * An advance takes effect for the runs that begin after its completion; a run that has begun keeps
 * its lengths. An advance during a graph's launch takes effect at an unknown layer: wait for the
 * graph, or for the completion of the advance, before the other begins.
 *
 * Launches of a lane must be in one stream, or ordered by events. Runs on different lanes overlap.
 * The lane's error word has the result of a run, and the stream goes on in any case.
 *
 * The executor is chosen once a session (attnd_launch.h): the service's worker, which the stream
 * rings, or the stream itself, by the service's kernels in this context. Of the latter:
 * - It needs no worker, and no time runs out while it waits for one.
 * - A graph keeps the kernel that executed the plan when it was captured. After a set that another
 *   one executes (its types, dimensions or options are others) its runs end with
 *   -ATTND_E_UNSUPPORTED, and o is not written: capture it again.
 * - A graph keeps the scratch of the lane, too: 64 MiB, or twice what the plan needed when that was
 *   more. After a set that needs more its runs end with -ATTND_E_NO_SPACE.
 * - A graph may be launched after attnd_unprepare() and attnd_plan_destroy(): -ATTND_E_UNKNOWN.
 * - The service does not see such runs. attnd_unprepare() waits for those in the lane's stream, and
 *   the release of a memory that runs have used for those of all lanes, but neither for a launch of
 *   a graph: synchronise with that before a run of it is unprepared, and before pages, plans and
 *   memory are given to something else. Preparing needs no such order.
 *
 * Where the worker executes, the stream goes on also when that dies, which is answered for it by
 * the next one, and when there is none for 30 s: the launch is given up then, and with it those of
 * the lane behind it, which end at once until it is answered after all or attnd_cuda_lane_error()
 * is asked. The first one after that waits for the answer, again for 30 s at most. So it is under
 * MPS. Without MPS the stream waits by memory operations and gives nothing up: it waits for the
 * next worker, and where the daemon is gone, too, until this process is ended. Under MPS the death
 * of a worker ends this context (see above).
 */

/**
 * attnd_cuda_run_on_stream() - launch a prepared run, and wait for it, in the order of a stream
 * @lane, @prepared: as given to and by attnd_prepare()
 * @stream: of the current context; may be capturing
 * Costs one kernel of one thread on the stream where the worker executes. Where the stream does, it
 * is the kernel that attends, and in front of it one that copies the plan: when that has changed,
 * and once a capture. Outside of a capture a launch may be there before the kernel in front of it
 * has ended (programmatic dependent launch), and then waits for that; for
 * what is further in front only as far as that kernel does, if it was itself launched early. The
 * first call of a session also maps its mailbox and loads that kernel, which blocks: make it, or
 * attnd_cuda_stream_open(), before what must not wait. Where the stream executes, so does the first
 * one of each prepared run, and of a plan that needs a kernel not loaded yet. All streams of a
 * session are of one context. Threads: any, one at a time for each lane. Return: 0: it is in the
 * stream; -ATTND_E_RANGE (lane); -ATTND_E_INVALID (no context is current, or another one than in
 * the first call); where the stream executes, -ATTND_E_UNKNOWN (no such prepared run, or not of
 * this lane), and why the plan is not filled; -ATTND_E_UNSUPPORTED, field memory: where it lies in
 * this process is not known, attnd_cuda_export() tells; field backend: the worker is not a GPU's,
 * attnd_launch() launches it; field device: the context is of another GPU (value) than the
 * service's (limit; -1: this process does not see that), and the mailbox is in device memory; what
 * attnd_mailbox() returns; -ATTND_E_DEVICE, attnd_last_fault() has the CUresult as value.
 */
int attnd_cuda_run_on_stream(struct attnd_session *session, uint32_t lane, uint32_t prepared,
                             CUstream stream);

/* Of attnd_cuda_run_fused_on_stream(). All of it is device memory of this process; nothing of it is
 * known to the service. */
struct attnd_cuda_fused_args {
    uint32_t size;
    uint32_t rows;    /* of k, v, positions and slots: as many as the batch has, or more */
    CUdeviceptr k, v; /* new rows, [rows][heads_kv][head_dim] of the type of q */
    uint32_t k_row_stride, k_head_stride; /* elements */
    uint32_t v_row_stride, v_head_stride;
    /* float [table_rows][2][rotary_dim / 2]: of each position the cosines, then the sines; 0:
     * nothing is rotated */
    CUdeviceptr cos_sin;
    /* int32 [rows], of the table; 0: of each row its own place among the keys of its request */
    CUdeviceptr positions;
    /* int32 [rows]: where k and v go, page * page_size + token, or -1: nowhere; 0: where the plan
     * has the row */
    CUdeviceptr slots;
    uint32_t table_rows;
    uint32_t rotary_dim; /* elements of a row that are rotated, the first ones: a multiple of 16 */
    /* 1: element 2 i is rotated with 2 i + 1 (GPT-J); 0: i with rotary_dim / 2 + i (Llama, NeoX) */
    uint32_t interleaved;
    uint32_t zero; /* 0 */
};

/**
 * attnd_cuda_run_fused_on_stream() - attnd_cuda_run_on_stream(), and in front of it what engines
 * have between the QKV product and attention: q and k rotated, k and v stored in their pages
 * @lane, @prepared, @stream: as there. The run's q is that of the product; it is left as it is.
 * @args: borrowed for the call
 * The result is that of the separate steps to the bit: rotated rows are rounded to their type (of a
 * pair (a, b): fma(a, cos, -(b sin)) and fma(a, sin, b cos), in float), then stored, or divided by
 * the scales of an fp8 pool and rounded once more.
 *
 * Where each request has so few rows that the batch is all of decode (rows times heads of q a head
 * of K come to 16 at most, or to 8 of 256 elements), this is one launch: what attends also rotates
 * and stores. Else a kernel that does so comes in front of it. Lengths and pages are those of the
 * plan, also of one that was planned on the device: kv_len counts the new rows. A graph keeps which
 * of the two it is: after a set whose batch is not all of decode a graph of one launch ends with
 * -ATTND_E_UNSUPPORTED.
 *
 * A slot that is given must be that of the row's place in the plan, or -1: attention reads the
 * plan's pages. Rows that belong to no request with keys want -1; without slots they are not
 * stored. Whose pages are written is the engine's matter, as if its own kernel did so: they must be
 * leased, and shared with nobody. A position that is not in the table, or a slot that is not in the
 * pool, is caught (attnd_cuda_lane_error(): -ATTND_E_RANGE), and the rows of its items are not to
 * be used.
 * The first call of a lane allocates memory on the GPU, which blocks.
 * Threads: as attnd_cuda_run_on_stream(). Return: 0: it is in the stream; -ATTND_E_UNSUPPORTED,
 * field executor: the service executes the session's runs; field levels: the batch has more than
 * one; field position_encoding: the batch has a rotation of its own; field dim_vo: V lies in the
 * rows of K; field head_dim: of more than 256 elements; field stride: rows of q, or of the pool, do
 * not keep 16-byte alignment; -ATTND_E_PERMISSION (field pool): attached for reading;
 * -ATTND_E_INVALID, naming k, v or q, which are missing or do not lie at a multiple of 16 bytes or
 * have strides that are none of 8 elements, position_encoding: the other arrays, at 16 and 4 bytes,
 * or reserved; -ATTND_E_RANGE, naming rows or rope_dim; and as attnd_cuda_run_on_stream().
 */
int attnd_cuda_run_fused_on_stream(struct attnd_session *session, uint32_t lane, uint32_t prepared,
                                   const struct attnd_cuda_fused_args *args, CUstream stream);

/* Of attnd_cuda_plan_on_stream(). The arrays are device memory of this process, int32 each, at
 * multiples of 4 bytes; nothing else of them is known to the service. */
struct attnd_cuda_plan_args {
    uint32_t size;
    uint32_t requests;     /* of the arrays: at most the entries of the batch that was set */
    uint32_t rows;         /* of q: of each request, one behind the other; with qo_indptr of all
                              together, at most. In all no more than the batch has that was set */
    uint32_t keys;         /* of a request, at most */
    uint32_t table_stride; /* elements from a request's page ids to the next one's; that many hold
                              `keys` at least, and all requests' no more than 2^31 */
    uint32_t zero;         /* 0 */
    CUdeviceptr lengths;   /* [requests] keys, those of the rows included; 0: padding */
    CUdeviceptr table;     /* [requests][table_stride] page ids of the plan's pool */
    CUdeviceptr qo_indptr; /* [requests + 1] where a request's rows begin; 0: each has `rows` */
    CUdeviceptr errors;    /* [requests], written: 0, or ATTND_E_RANGE; 0: not wanted */
};

/**
 * attnd_cuda_plan_on_stream() - plan a batch whose lengths are known on the GPU alone, in the order
 * of a stream
 * @plan:   set before, to a batch of as many requests and rows as there may be, and of no pages:
 *          that says all that lengths do not (types, heads, scale, flags, variant, strides)
 * @lane:   of the runs that follow
 * @args:   borrowed for the call
 * @stream: as for attnd_cuda_run_on_stream(); may be capturing
 * Costs one small kernel, once a step, in front of the runs of all layers: it cuts the lengths into
 * tiles as the service plans them. A graph of both serves any lengths within its bounds. It keeps
 * what it captured: places, bounds, and the batch that was set by then.
 *
 * From the first such call on runs of the plan in the lane execute what was planned last on the
 * device, until the plan is set again. They read page ids where they are, so the table may not
 * change until they are over; the other arrays are read by this call's kernel alone.
 *
 * A request of length 0 or of no rows is padding: it costs nothing, and its rows of o and lse are
 * left as they are. Of one whose length is negative or above `keys`, or of whose page ids one is
 * not in the pool, rows of o and lse are NaN, its word of `errors` says so, and
 * attnd_cuda_lane_error() tells which: field kv_len or kv_indices, index the request. The others
 * are right. If qo_indptr decreases, or ends behind `rows`, nothing is executed: all words of
 * `errors`, and field qo_indptr. Nothing outside of the pool is read in any case.
 *
 * The first call of a plan in a lane, and one with larger bounds, allocates memory on the GPU,
 * which blocks. Threads: any, one at a time for each lane. Return: 0: it is in the stream;
 * -ATTND_E_UNSUPPORTED, field executor: the service executes the session's runs; field levels,
 * mask, fixed_split or chunk: the batch that was set has what needs lengths on the host;
 * -ATTND_E_RANGE, naming requests, rows, kv_len (keys: limit what fits the table, or an item),
 * pages (of the table) or items (bytes that bounds take of an SM's memory: some 3,000 requests of a
 * row, or 60,000 rows of some requests, are possible); -ATTND_E_INVALID, naming an array, or the
 * plan, which is empty; and as attnd_cuda_run_on_stream().
 */
int attnd_cuda_plan_on_stream(struct attnd_session *session, uint32_t plan, uint32_t lane,
                              const struct attnd_cuda_plan_args *args, CUstream stream);

/** attnd_cuda_stream_open() - what the first attnd_cuda_run_on_stream() does before it launches. */
int attnd_cuda_stream_open(struct attnd_session *session);

/**
 * attnd_cuda_lane_error() - what the first run of the lane failed with since this was last asked
 * Outputs of a lane that has an error are not to be used. Blocks for a copy of four bytes; streams
 * are not waited for, so ask when the run is over.
 * Threads: as above, the context current. Return: 0 none did; its code, for instance
 * -ATTND_E_UNKNOWN (no such prepared run), -ATTND_E_WORKER_RESTARTED (launch it again),
 * -ATTND_E_TIMEOUT (nobody answered for 30 s; where the stream executes, the daemon was stopped for
 * 2 s while it wrote the plan), -ATTND_E_RANGE (attnd_cuda_plan_on_stream() has refused a request);
 * -ATTND_E_INVALID; -ATTND_E_DEVICE.
 */
int attnd_cuda_lane_error(struct attnd_session *session, uint32_t lane);

#ifdef __cplusplus
}
#endif
#endif
