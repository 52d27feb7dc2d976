/*
 * alive.c - a watchdog for what the daemon cannot mend itself.
 *
 * A worker that hangs is killed and started again by the daemon (supervise/watchdog.c), and a
 * restart is progress. The service manager has to see a daemon whose loop stands still, and a
 * worker that neither moves nor comes back.
 */
#include "service/daemon/alive.h"

#include "schemas/clock.h"
#include "service/args/args.h"
#include "service/daemon/notify.h"
#include "service/rpc/data_status.h"

#include <stdlib.h>
#include <unistd.h>

static void look_later(const struct attnd_alive *alive)
{
    attnd_loop_timer_set(alive->service->loop, alive->timer, attnd_clock_ns() + alive->period_ns);
}

static void look(void *context)
{
    struct attnd_alive *alive = context;
    struct attnd_data_status data;

    attnd_data_status(alive->service, &data);
    if (data.worker_heartbeat != alive->heartbeat || data.worker_restarts != alive->restarts)
        (void)attnd_notify("WATCHDOG=1");
    alive->heartbeat = data.worker_heartbeat;
    alive->restarts = data.worker_restarts;
    look_later(alive);
}

int attnd_alive_start(struct attnd_alive *alive, struct attnd_service *service)
{
    const char *period = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    uint64_t us, for_pid;

    *alive = (struct attnd_alive){.service = service};
    if (!period || attnd_number_parse(period, 1, UINT32_MAX, &us) < 0)
        return 0;
    if (pid && (attnd_number_parse(pid, 0, INT32_MAX, &for_pid) < 0 || (pid_t)for_pid != getpid()))
        return 0;
    alive->period_ns = us * 1000u / 3u;
    alive->timer = attnd_loop_timer_new(service->loop, look, alive);
    if (!alive->timer)
        return -ATTND_E_NO_MEMORY;
    look_later(alive);
    return 0;
}

void attnd_alive_stop(struct attnd_alive *alive)
{
    if (alive->timer)
        attnd_loop_unwatch(alive->service->loop, alive->timer, NULL, NULL);
    alive->timer = NULL;
}
