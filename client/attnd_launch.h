/*
 * attnd_launch.h - launched runs: prepared once, begun by a word. Part of attnd.h.
 *
 * A run is prepared once and launched any number of times, without a submission and without a
 * completion. A launch writes one word of the session's mailbox, a constant, so a CUDA graph can
 * hold it and replay it. A launch follows its plan: attnd_plan_set() and attnd_plan_advance()
 * change what launches after their completion see, and wait for the launches before. A session has
 * six of them under way at a time; the rest wait in line.
 *
 * A lane has one launched run at a time. These lanes are not those of submitted operations. Nothing
 * but the engine orders a launch with operations on the lane of the same number: it waits for a
 * completion before it launches, or for an answer before it submits.
 *
 * A session's first call about launched runs decides which executor its launches have: the
 * service's worker, whose mailbox is rung, or the engine's own stream, by a kernel of the service's
 * build. attnd_open_args.execute is the engine's wish; without one the operator's word counts
 * (attnd --execute), and attnd_info.executor tells. Where the stream executes there is no mailbox:
 * attnd_cuda_run_on_stream() launches, and a set or an advance waits for no launch before it.
 *
 * A launch that fails is answered too. The lane keeps the first failure's code until the engine
 * takes it: -ATTND_E_WORKER_RESTARTED (launch it again), -ATTND_E_UNKNOWN (no run of that number is
 * prepared for this session and lane), and what became of the plan: -ATTND_E_INVALID (it is empty),
 * -ATTND_E_RANGE, -ATTND_E_OVERLAP (q, o or lse do not suit the batch that was set),
 * -ATTND_E_NO_SPACE (no memory for its partials), -ATTND_E_UNSUPPORTED (more items than
 * attnd_prepare() takes). Appends are not prepared, because lengths and leases of the moment decide
 * which pages they may write. Engines store K and V themselves, or submit them; or the launch does
 * so, where the engine's stream executes it (attnd_cuda_run_fused_on_stream()).
 */
#ifndef ATTND_LAUNCH_H
#define ATTND_LAUNCH_H

#include "attnd_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

struct attnd_prepare_args {
    uint32_t size;
    uint32_t layer;
    uint32_t lane; /* 0..63: its doorbell launches the run */
    uint32_t zero; /* 0 */
    struct attnd_tensor q, o;
    struct attnd_tensor lse; /* memory 0: not wanted */
};

/**
 * attnd_prepare() - a run that can be launched
 * @plan: filled; may be set and advanced again later
 * @args: as attnd_run() takes them. o and lse must lie in memory of this session's own.
 * @prepared: receives its number; other sessions cannot launch it, and no run of this session gets
 *            it again before 65,535 others had its slot
 * Blocks until a launch would find it: the worker has its memory, and runs of the plan that are in
 * flight have ended. It holds plan, pool and memory until it is unprepared: to destroy or release
 * them is -ATTND_E_BUSY.
 * Return: 0; -ATTND_E_UNSUPPORTED: field mailbox, the service launches nothing; field executor, the
 * engine cannot execute as it wishes, or the operator says (no GPU, or no kernels); field items,
 * tiles of the plan times KV heads are more than a doorbell can count, 4,194,304; else, the worker
 * cannot execute this plan; -ATTND_E_INVALID (the plan is empty), -ATTND_E_UNKNOWN, -ATTND_E_RANGE,
 * -ATTND_E_OVERLAP, -ATTND_E_PERMISSION, -ATTND_E_NO_SPACE: field prepared or partials, a session
 * may have half of what there is of either; limit says what is left to it.
 */
int attnd_prepare(struct attnd_session *session, uint32_t plan,
                  const struct attnd_prepare_args *args, uint32_t *prepared);

/** attnd_unprepare() - the reverse; returns when nothing of it is in flight. A launch that comes
 * after it, of a graph for instance, is answered with -ATTND_E_UNKNOWN, whatever was prepared
 * since. Return: 0; -ATTND_E_UNKNOWN. */
int attnd_unprepare(struct attnd_session *session, uint32_t prepared);

/**
 * attnd_mailbox() - the memory whose words a launch writes; made when it is first needed
 * @memory: receives the handle; attnd_memory_info() tells where it lies. It begins with
 *          doorbell[64], error[64] of 32 bits each. A doorbell is 1 + code while the lane rests,
 *          and only then may be written: store 0x80000000 + prepared, with release, and wait until
 *          it is not 0 and below 0x80000000. The memory goes with the session.
 * Only engines that launch without attnd_launch() and libattnd-cuda need it. Return: 0;
 * -ATTND_E_UNSUPPORTED (field mailbox) there is none, also where the engine's stream executes.
 */
int attnd_mailbox(struct attnd_session *session, uint32_t *memory);

/**
 * attnd_launch() - launch a prepared run from the host
 * Threads: one at a time for each lane. Never blocks; one system call. The service reads q from now
 * on. Return: 0; -ATTND_E_BUSY the lane's last launch is not answered; -ATTND_E_INVALID nothing was
 * ever prepared; -ATTND_E_UNSUPPORTED the mailbox is in device memory, or there is none:
 * libattnd-cuda launches it.
 */
int attnd_launch(struct attnd_session *session, uint32_t lane, uint32_t prepared);

/**
 * attnd_launch_wait() - wait until the lane's last launch is answered
 * Threads: any. Spins as attnd_wait() does, then sleeps. Return: 0: o and lse are there; what the
 * launch failed with (no field; index: the lane); -ATTND_E_TIMEOUT it is still pending;
 * -ATTND_E_DISCONNECTED it never will be answered.
 */
int attnd_launch_wait(struct attnd_session *session, uint32_t lane, uint64_t timeout_ns);

/** attnd_lane_error() - what the first launch of the lane failed with since this was last asked.
 * Return: 0 none did; its code. */
int attnd_lane_error(struct attnd_session *session, uint32_t lane);

#ifdef __cplusplus
}
#endif
#endif
