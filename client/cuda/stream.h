/*
 * stream.h - what a session has for its streams: rings of the service, or an engine of its own.
 */
#ifndef ATTND_CLIENT_CUDA_STREAM_H
#define ATTND_CLIENT_CUDA_STREAM_H

#include "client/cuda/attnd_cuda.h"
#include "client/cuda/engine.h"

struct attnd_stream_launcher {
    CUcontext context;
    CUdeviceptr mailbox;          /* struct attnd_mailbox, as the GPU sees it */
    struct attnd_wake *wake_host; /* the session's mapping, registered */
    CUdeviceptr wake;             /* as the GPU sees it; 0: the worker's kernels are always there */
    int turns;                    /* contexts take turns on the GPU: nothing may spin */
    int plain;                    /* the GPU is from before Hopper: no launch begins early */
    CUstream stream;              /* of our own, for copies */
    CUmodule module;
    CUfunction ring;
    struct attnd_engine *engine; /* NULL: the service executes the session's runs */
};

/** attnd_stream_launcher_open() - the session's, made by the first call. NULL with *@code: as
 * attnd_cuda_stream_open(). */
struct attnd_stream_launcher *attnd_stream_launcher_open(struct attnd_session *session, int *code);

/** attnd_stream_check_lane() - Return: 0; -ATTND_E_RANGE. */
int attnd_stream_check_lane(uint32_t lane);

/** attnd_stream_fault() - the driver's @result as a fault. Return: its code. */
int attnd_stream_fault(CUresult result);

/* ---- ring.c ---- */

/** attnd_rings_open() - the mailbox and the kernel that rings. Return: 0; a fault, with what there
 * is already in @launcher, for attnd_rings_end(). */
int attnd_rings_open(struct attnd_session *session, struct attnd_stream_launcher *launcher);
/** attnd_rings_end() - the context may be gone. */
void attnd_rings_end(struct attnd_stream_launcher *launcher);
/** attnd_ring() - rings for a prepared run in a stream, which waits for the answer. */
CUresult attnd_ring(const struct attnd_stream_launcher *launcher, uint32_t lane, uint32_t prepared,
                    CUstream stream);

#endif
