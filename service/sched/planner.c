/*
 * planner.c - a thread that fills large plans.
 *
 * Its work is lent to it: nobody else looks at an operation, its copy of the batch and its plan
 * until the job is done (lane.c, ATTND_LANE_PLANNING). So the lock guards two lists and the
 * sessions' order, nothing more. Jobs are worked one at a time. The next is of the session whose
 * last one was the longest ago: one that plans without end costs another the job that is under way.
 */
#include "service/sched/planner.h"

#include "schemas/timeslice.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct attnd_planner {
    struct attnd_loop *loop;
    struct attnd_watch *watch;
    void (*idle)(void *context);
    void *context;
    int fd; /* eventfd: jobs are worked */
    pthread_t thread;
    pid_t tid; /* 0: it has not begun */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct attnd_planner_job *queued, **queued_end;
    struct attnd_planner_job *worked, **worked_end;
    uint64_t jobs;
    int stop;
};

/* The lock is held. Return: NULL if there is none. */
static struct attnd_planner_job *pick(struct attnd_planner *planner)
{
    struct attnd_planner_job **best = &planner->queued;
    if (!*best)
        return NULL;
    for (struct attnd_planner_job **at = &(*best)->next; *at; at = &(*at)->next)
        if (*(*at)->last < *(*best)->last)
            best = at;
    struct attnd_planner_job *job = *best;
    *best = job->next;
    if (planner->queued_end == &job->next)
        planner->queued_end = best;
    job->next = NULL;
    *job->last = ++planner->jobs;
    return job;
}

static void *work(void *context)
{
    struct attnd_planner *planner = context;
    (void)attnd_timeslice_ask(ATTND_TIMESLICE_LONG_NS, ATTND_TIMESLICE_PLANS_NICE);
    pthread_mutex_lock(&planner->lock);
    planner->tid = (pid_t)syscall(SYS_gettid);
    while (!planner->stop) {
        struct attnd_planner_job *job = pick(planner);
        if (!job) {
            pthread_cond_wait(&planner->changed, &planner->lock);
            continue;
        }
        pthread_mutex_unlock(&planner->lock);
        job->work(job);
        pthread_mutex_lock(&planner->lock);
        *planner->worked_end = job;
        planner->worked_end = &job->next;
        pthread_mutex_unlock(&planner->lock);
        (void)eventfd_write(planner->fd, 1); /* the loop takes the processor, and then the lock */
        pthread_mutex_lock(&planner->lock);
    }
    pthread_mutex_unlock(&planner->lock);
    return NULL;
}

/* The lock is held. Return: a list of all of them, which is empty then. */
static struct attnd_planner_job *take_all(struct attnd_planner_job **list,
                                          struct attnd_planner_job ***end)
{
    struct attnd_planner_job *all = *list;
    *list = NULL;
    *end = list;
    return all;
}

static void be_done(struct attnd_planner_job *jobs, int worked)
{
    while (jobs) {
        struct attnd_planner_job *job = jobs;
        jobs = job->next;
        job->done(job, worked); /* and perhaps the end of it */
    }
}

static void collect(void *context, uint32_t poll_events)
{
    struct attnd_planner *planner = context;
    eventfd_t count;
    (void)poll_events;
    (void)eventfd_read(planner->fd, &count);
    pthread_mutex_lock(&planner->lock);
    struct attnd_planner_job *jobs = take_all(&planner->worked, &planner->worked_end);
    pthread_mutex_unlock(&planner->lock);
    be_done(jobs, 1);
    planner->idle(planner->context);
}

static int start(struct attnd_planner *planner)
{
    sigset_t all, before;
    planner->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (planner->fd < 0)
        return -ATTND_E_SYSTEM;
    planner->watch = attnd_loop_watch_fd(planner->loop, planner->fd, POLLIN, collect, planner);
    if (!planner->watch)
        return -ATTND_E_NO_MEMORY;
    (void)sigfillset(&all); /* signals are the loop's */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&planner->thread, NULL, work, planner);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        (void)pthread_setname_np(planner->thread, "planner");
    return rc == 0 ? 0 : -ATTND_E_SYSTEM;
}

/* The kernel looks at the descriptor no more. */
static void forget(void *context)
{
    struct attnd_planner *planner = context;
    if (planner->fd >= 0)
        close(planner->fd);
    (void)pthread_mutex_destroy(&planner->lock);
    (void)pthread_cond_destroy(&planner->changed);
    free(planner);
}

static void release(struct attnd_planner *planner)
{
    if (planner->watch)
        attnd_loop_unwatch(planner->loop, planner->watch, forget, planner);
    else
        forget(planner);
}

int attnd_planner_new(struct attnd_loop *loop, void (*idle)(void *context), void *context,
                      struct attnd_planner **out)
{
    struct attnd_planner *planner = calloc(1, sizeof(*planner));
    if (!planner)
        return -ATTND_E_NO_MEMORY;
    *planner = (struct attnd_planner){.loop = loop, .idle = idle, .context = context, .fd = -1};
    planner->queued_end = &planner->queued;
    planner->worked_end = &planner->worked;
    (void)pthread_mutex_init(&planner->lock, NULL);
    (void)pthread_cond_init(&planner->changed, NULL);
    int rc = start(planner);
    if (rc < 0) {
        release(planner);
        return rc;
    }
    *out = planner;
    return 0;
}

void attnd_planner_submit(struct attnd_planner *planner, struct attnd_planner_job *job)
{
    pthread_mutex_lock(&planner->lock);
    job->next = NULL;
    *planner->queued_end = job;
    planner->queued_end = &job->next;
    pthread_cond_signal(&planner->changed);
    pthread_mutex_unlock(&planner->lock);
}

void attnd_planner_free(struct attnd_planner *planner)
{
    if (!planner)
        return;
    pthread_mutex_lock(&planner->lock);
    planner->stop = 1;
    pthread_cond_signal(&planner->changed);
    if (planner->tid) /* beside a busy machine its job would take long */
        attnd_timeslice_lend(planner->tid);
    pthread_mutex_unlock(&planner->lock);
    (void)pthread_join(planner->thread, NULL);
    struct attnd_planner_job *worked = take_all(&planner->worked, &planner->worked_end);
    struct attnd_planner_job *queued = take_all(&planner->queued, &planner->queued_end);
    be_done(worked, 1);
    be_done(queued, 0);
    release(planner);
}
