/*
 * line.c - what all sessions share on the way to the worker: run slots, and the line for them.
 *
 * Each session that is open can have a run slot at once, whatever others do: of the free ones, as
 * many are kept back as there are sessions that have none. The rest is for all. Of the lanes that
 * wait, the next is one of the session that has the fewest runs for its weight, and of equal ones
 * the one that came first. So a session that floods the line stands behind one that has little, and
 * a run that waits for much scratch is not overtaken for ever: its session has the fewer runs the
 * longer it waits.
 */
#include "service/sched/line.h"

#include "service/sched/scheduler.h"

static uint32_t weight_of(const struct attnd_client_lanes *session)
{
    return session->client->weight ? session->client->weight : 1;
}

/* < 0: @a goes first. */
static int64_t compare(const struct attnd_client_lanes *a, const struct attnd_client_lanes *b)
{
    return (int64_t)a->dispatched * weight_of(b) - (int64_t)b->dispatched * weight_of(a);
}

int attnd_line_slot(const struct attnd_client_lanes *session)
{
    const struct attnd_scheduler *scheduler = session->scheduler;
    if (session->dispatched == 0)
        return scheduler->slots_free > 0;
    return scheduler->slots_free > scheduler->open_count - scheduler->open_busy;
}

void attnd_line_count(struct attnd_client_lanes *session, int more)
{
    struct attnd_scheduler *scheduler = session->scheduler;
    const int had = session->dispatched > 0;
    session->dispatched += (uint32_t)more;
    scheduler->dispatched += (uint32_t)more;
    scheduler->slots_free -= (uint32_t)more;
    if (!session->closing) /* a closing one is not among those that are open */
        scheduler->open_busy += (uint32_t)((session->dispatched > 0) - had);
}

/* May this lane be the next although others wait? */
static int may_try(const struct attnd_client_lanes *session)
{
    return session->scheduler->queue->accepting && attnd_line_slot(session);
}

struct attnd_lane *attnd_line_next(const struct attnd_scheduler *scheduler)
{
    struct attnd_lane *best = NULL;
    for (uint32_t i = 0; i < scheduler->open_count; i++) {
        struct attnd_lane *lane = scheduler->open[i]->waiting.head;
        if (!lane || !may_try(lane->session))
            continue;
        int64_t order = best ? compare(lane->session, best->session) : -1;
        if (order < 0 || (order == 0 && lane->since < best->since))
            best = lane;
    }
    return best;
}

int attnd_line_is_before(const struct attnd_client_lanes *session)
{
    const struct attnd_scheduler *scheduler = session->scheduler;
    if (scheduler->waiting_count == 0)
        return 0;
    const struct attnd_lane *next = attnd_line_next(scheduler);
    return session->waiting.head || (next && compare(next->session, session) <= 0);
}
