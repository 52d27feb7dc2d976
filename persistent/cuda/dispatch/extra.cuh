/*
 * extra.cuh - workers that come and go beside kernels that stay (attnd --reserve).
 *
 * The dispatcher and some workers stay; the others are extra workers, armed behind the wake word as
 * gangs are, but without a dispatcher of their own. A ring calls them, and so does the chores' warp
 * while items are left that nobody has taken. It also tells them to leave: when there is no such
 * item any more, or after 2 ms, like a gang. Whether they are there decides nothing but how fast a
 * run is, because workers that stay take every item in the end. So a call that is lost, where a
 * ring and their leaving meet, is made up for by the next pass. Those of one launch have a number,
 * as a gang has, and are called extras.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_EXTRA_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_EXTRA_CUH

#include "persistent/cuda/dispatch/doorbells.cuh"
#include "persistent/cuda/dispatch/stay.cuh"
#include "persistent/cuda/machine/scalar.cuh"

namespace attnd
{

/* From one call to the next: those that were called take some 10 us. */
constexpr uint64_t extras_call_ns = 20000;

/* The warp's own. The same in all lanes. */
struct Extras {
    uint32_t there, told; /* the last that were seen, and that were told to leave */
    uint32_t begun_at;    /* positions published when those before them were told */
    uint64_t since_ns;    /* when they were seen */
    uint64_t called_ns;
    uint64_t idle_ns; /* when no item was left; 0: there are some */
};

__device__ __forceinline__ Extras extras_start(const Dispatch *dispatch, Resident *resident)
{
    const uint32_t before = dispatch->settings.extras_before;
    if (dispatch->settings.reserved && threadIdx.x % 32 == 0)
        publish_gpu(&resident->extras_leave, before);
    return {before, before, observe_cta(&dispatch->published), 0, 0, 0};
}

/* All that are armed leave as soon as they come. */
__device__ __forceinline__ void extras_end(const Dispatch *dispatch, Resident *resident,
                                           const Extras *self)
{
    if (dispatch->settings.reserved && threadIdx.x % 32 == 0)
        publish_gpu(&resident->extras_leave, self->there + (1u << 30));
}

/* The word is cleared before they are told, so that one who rings now calls the next. A doorbell
 * that is rung by then does, too, but where it waits for the next kernels. */
__device__ __forceinline__ void extras_tell(Dispatch *dispatch, Resident *resident, Extras *self)
{
    attnd_wake *wake = dispatch->settings.wake;
    const uint32_t lane = threadIdx.x % 32;
    if (lane == 0)
        store_relaxed_sys(&wake->wake, 0);
    __syncwarp();
    fence_order_sys();
    dispatch_lock(dispatch); /* or memory of a mailbox that is let go might go during the look */
    const bool pending = !dispatch->closing && doorbells_pending(dispatch);
    dispatch_unlock(dispatch);
    self->begun_at = observe_cta(&dispatch->published);
    self->told = self->there;
    self->idle_ns = self->called_ns = 0;
    if (lane == 0) {
        if (pending)
            store_relaxed_sys(&wake->wake, 1);
        publish_gpu(&resident->extras_leave, self->told);
        store_relaxed_sys(&dispatch->settings.host->extras_left, self->told);
    }
    __syncwarp();
}

/* Are they to stay? Like a gang: while there is an item to take; and a little longer behind a run
 * that was submitted, because another one comes soon. */
__device__ __forceinline__ bool extras_stay(const Dispatch *dispatch, Extras *self, bool left,
                                            uint64_t now)
{
    const uint32_t published = observe_cta(&dispatch->published);
    if (now - self->since_ns >= stay_ns)
        return false;
    if (left) {
        self->idle_ns = 0;
        return true;
    }
    if (!self->idle_ns)
        self->idle_ns = now;
    const Position &last = dispatch->positions[(published - 1) % ring_positions];
    return published != self->begun_at && last.doorbell == ATTND_NONE &&
           now - self->idle_ns < linger_ns;
}

/* One pass, also while kernels close: what was published is to be over soon. The whole warp. */
__device__ __forceinline__ void pass_extras(Dispatch *dispatch, Resident *resident, Extras *self)
{
    if (!dispatch->settings.reserved)
        return;
    attnd_wake *wake = dispatch->settings.wake;
    const uint64_t now = clock_ns();
    const uint32_t there = observe_gpu(&resident->extras_there);
    const bool left = !items_gone(dispatch, resident, observe_cta(&dispatch->retired),
                                  observe_cta(&dispatch->published));
    if (int32_t(there - self->told) <= 0) { /* none */
        if (left && now - self->called_ns > extras_call_ns) {
            self->called_ns = now;
            if (threadIdx.x % 32 == 0)
                store_relaxed_sys(&wake->wake, 1);
        }
        return;
    }
    if (there != self->there) {
        self->there = there;
        self->since_ns = now;
    }
    if (!extras_stay(dispatch, self, left, now))
        extras_tell(dispatch, resident, self);
}

} // namespace attnd

#endif
